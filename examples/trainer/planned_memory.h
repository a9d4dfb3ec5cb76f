// SPDX-License-Identifier: Apache-2.0
// What each rank will hold between two steps, without making any of it.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/module.h"
#include "zero/config.h"

namespace tessera::examples {

// What a rank holds between two steps.
struct RankMemory {
  int64_t weights = 0, gradients = 0, states = 0;  // bytes
};

// The same on every rank, for shards are padded to equal lengths. The config's batch is resolved. Throws Error.
RankMemory PlannedMemory(const nn::Module& model, const zero::Config& config, int ranks);

}  // namespace tessera::examples
