// SPDX-License-Identifier: Apache-2.0
// What the tests of the contract run over: each test program has its own, threads or processes.
#pragma once

#include <string>
#include <vector>

#include "tests/comm/ranks.h"

namespace tessera::comm::testing {

std::vector<WorldOptions> ContractWorlds();
std::string ContractWorldName(const WorldOptions& options);
// As World::OnRanks. Where ranks are processes, each runs the body of its own rank, and all get the outcome of all.
Outcome OnContractWorld(const WorldOptions& options, World::Body body);

}  // namespace tessera::comm::testing
