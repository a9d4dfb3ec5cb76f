// SPDX-License-Identifier: Apache-2.0
// Softmax over the last dimension: y = exp(x - max) / sum exp(x - max), or its logarithm y = x - max - log sum exp(x -
// max).
//
// x, y (..., C): one floating dtype, rows dense, other dims with any strides; y may be x. Sums are in f32 (f64 for
// f64). A row of nothing but -infinity has no distribution: it gives 0 (log: -infinity), and its gradient is 0. NaN
// anywhere in a row makes the row NaN. C = 0 and no rows are legal.
//
// Backward, from the saved result y:  dx = y * (dy - sum dy * y);  log: dx = dy - exp(y) * sum dy.  dx may be dy.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct SoftmaxForwardArgs {
  ConstView x;
  View y;
  bool log = false;
};

struct SoftmaxBackwardArgs {
  ConstView dy, y;
  View dx;
  bool log = false;
};

void SoftmaxForward(const SoftmaxForwardArgs& args);
void SoftmaxBackward(const SoftmaxBackwardArgs& args);

TESSERA_CPU_KERNEL(SoftmaxForward, SoftmaxForwardArgs)
TESSERA_CPU_KERNEL(SoftmaxBackward, SoftmaxBackwardArgs)

}  // namespace tessera::ops
