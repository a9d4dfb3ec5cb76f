// SPDX-License-Identifier: Apache-2.0
// Differentiable rotary positions (rotate-half form).
//
//   RopeTable table({.head_dim = 64, .max_positions = 2048});
//   Tensor q = Rope(q, table, /*position_offset=*/0);
#pragma once

#include "autograd/param.h"
#include "tensor/ops/rope_table.h"

namespace tessera {

// x (B, T, H, D), the last dimension dense -> (B, T, H, D). Row t has position position_offset + t. With rotated_heads
// only the first heads are turned: queries and keys of a packed projection (B, T, Hq + 2 Hkv, D) in one call.
Tensor Rope(const Input& x, const RopeTable& table, int64_t position_offset = 0, int64_t rotated_heads = -1);

}  // namespace tessera
