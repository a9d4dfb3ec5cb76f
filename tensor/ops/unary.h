// SPDX-License-Identifier: Apache-2.0
// Functions of one element: y[i] = f(x[i]), and their gradients dx[i] = dy[i] * f'.
//
// x, y: one floating dtype, one shape, any layouts (y without overlap); y may be x. Computed in f32 (f64 for f64).
// Outside a function's domain the result is NaN or an infinity, as in C; NaN gives NaN, in relu too.
//
// The gradient is made of dy and one saved tensor, x or y, whichever SavedFor names:
//   neg -dy, exp dy y, log dy / x, sqrt dy / (2 y), rsqrt -dy y^3 / 2, square 2 dy x, abs dy sign(x) (0 at 0),
//   reciprocal -dy y^2, tanh dy (1 - y^2), sigmoid dy y (1 - y), relu dy where y > 0 (0 at 0), silu and gelu from x.
// gelu_tanh is the approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); gelu_erf is x times the normal
// distribution function.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

enum class UnaryOp : uint8_t {
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kSquare,
  kAbs,
  kReciprocal,
  kTanh,
  kSigmoid,
  kRelu,
  kSilu,
  kGeluTanh,
  kGeluErf,
};
const char* Name(UnaryOp op);

enum class UnarySaved : uint8_t { kNothing, kX, kY };
UnarySaved SavedFor(UnaryOp op);

struct UnaryForwardArgs {
  UnaryOp op;
  ConstView x;
  View y;
};

struct UnaryBackwardArgs {
  UnaryOp op;
  ConstView dy;
  ConstView saved;  // x or y; absent for kNothing
  View dx;          // any floating dtype; may be dy
  bool accumulate = false;
};

void UnaryForward(const UnaryForwardArgs& args);
void UnaryBackward(const UnaryBackwardArgs& args);

TESSERA_CPU_KERNEL(UnaryForward, UnaryForwardArgs)
TESSERA_CPU_KERNEL(UnaryBackward, UnaryBackwardArgs)

}  // namespace tessera::ops
