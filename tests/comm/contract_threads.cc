// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/contract.h"

namespace tessera::comm::testing {

std::vector<WorldOptions> ContractWorlds() {
  std::vector<WorldOptions> worlds;
  for (const StreamKind stream : {StreamKind::kInline, StreamKind::kWorker}) {
    worlds.push_back({.size = 1, .self = true, .stream = stream});
    worlds.push_back({.size = 1, .self = true, .ledger = true, .stream = stream});
    for (const bool ledger : {false, true}) {
      for (const int size : {1, 2, 3, 4, 8}) worlds.push_back({.size = size, .ledger = ledger, .stream = stream});
    }
  }
  return worlds;
}

std::string ContractWorldName(const WorldOptions& options) {
  return Str(options.self ? "Self" : "Threads", options.size, options.ledger ? "Ledger" : "",
             options.stream == StreamKind::kInline ? "Inline" : "Worker");
}

Outcome OnContractWorld(const WorldOptions& options, World::Body body) { return World(options).OnRanks(body); }

}  // namespace tessera::comm::testing
