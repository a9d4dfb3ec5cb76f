// SPDX-License-Identifier: Apache-2.0
// Rotary positions, in the rotate-half form of HuggingFace's models: with (c, s) = table[position_offset + t, i],
//   y[b, t, h, i] = x_i c - x_j s,   y[b, t, h, j] = x_j c + x_i s,   j = i + D/2.
// `inverse` turns back, which is also the backward: the gradient is rotated by the negative angle.
//
// x, y (B, T, H, D), D even: one floating dtype, the last dimension dense, other dims with any strides; y may be x.
// Only the first `rotated_heads` heads are turned, the others are copied: queries and keys of a packed projection in
// one call. table (P, D): the accumulation type, contiguous, D/2 cosines then D/2 sines (see rope_table.h);
// position_offset + T <= P.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct RopeArgs {
  ConstView x, table;
  View y;
  int64_t position_offset = 0;
  int64_t rotated_heads = -1;  // -1: all
  bool inverse = false;
};

void Rope(const RopeArgs& args);

TESSERA_CPU_KERNEL(Rope, RopeArgs)

}  // namespace tessera::ops
