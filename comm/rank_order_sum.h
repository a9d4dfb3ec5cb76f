// SPDX-License-Identifier: Apache-2.0
// The sum that reductions promise: out[i] = round(((x0[i] + x1[i]) + x2[i]) + ...), in f32 (f64 for f64), in the order of
// ranks, rounded once to the dtype. With one source it is a plain copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace tessera::comm {

// `out` may be one of the sources, at the same start. dtype: a floating one.
void SumInRankOrder(DType dtype, std::span<const std::byte* const> sources, std::byte* out, int64_t count);

}  // namespace tessera::comm
