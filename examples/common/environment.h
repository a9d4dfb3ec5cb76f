// SPDX-License-Identifier: Apache-2.0
// What a run was made with: versions, compiler, machine.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "examples/common/format.h"

namespace tessera::examples {

std::vector<Row> EnvironmentRows();

std::string CpuName();                    // as /proc/cpuinfo tells it, else "unknown"
std::string LocalTime(std::time_t time);  // "2026-11-30 01:52:07 +0000"

}  // namespace tessera::examples
