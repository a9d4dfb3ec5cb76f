// SPDX-License-Identifier: Apache-2.0
// Names that other trainers give to a ZeRO stage.
//
//   StageOfStrategy("deepspeed_stage_3") -> 3
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::examples {

// Throws Error for what is not here, offload named as such, and for an unknown name, with those that are known.
int64_t StageOfStrategy(std::string_view name);

}  // namespace tessera::examples
