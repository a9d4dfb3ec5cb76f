// SPDX-License-Identifier: Apache-2.0
// The gated unit of Llama's MLP: y = silu(gate) * up, silu(g) = g * s with s = 1 / (1 + exp(-g)).
// N. Shazeer, "GLU Variants Improve Transformer", 2020.
//
// gate, up, y: one shape, one floating dtype, any layouts (y without overlap): the halves of a packed projection go in
// as they are. Computed in f32 (f64 for f64). y may be gate or up.
//
// Backward:  dup = dy * silu(gate),  dgate = dy * up * s * (1 + gate * (1 - s)).  dgate and dup may be the halves of
// one buffer; they may be dy, gate or up, but not each other.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct SwiGluForwardArgs {
  ConstView gate, up;
  View y;
};

struct SwiGluBackwardArgs {
  ConstView dy, gate, up;
  View dgate, dup;
};

void SwiGluForward(const SwiGluForwardArgs& args);
void SwiGluBackward(const SwiGluBackwardArgs& args);

TESSERA_CPU_KERNEL(SwiGluForward, SwiGluForwardArgs)
TESSERA_CPU_KERNEL(SwiGluBackward, SwiGluBackwardArgs)

}  // namespace tessera::ops
