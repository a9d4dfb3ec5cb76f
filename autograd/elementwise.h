// SPDX-License-Identifier: Apache-2.0
// Differentiable functions of elements. Dtypes, layouts and formulas are those of tensor/ops/{unary,binary,scale}.h.
//
//   Tensor y = Mul(Relu(x), scale);   // scale may be a parameter, and broadcasts
#pragma once

#include "autograd/param.h"

namespace tessera {

Tensor Neg(const Input& x);
Tensor Exp(const Input& x);
Tensor Log(const Input& x);
Tensor Sqrt(const Input& x);
Tensor Rsqrt(const Input& x);
Tensor Square(const Input& x);
Tensor Abs(const Input& x);  // gradient 0 at 0
Tensor Reciprocal(const Input& x);
Tensor Tanh(const Input& x);
Tensor Sigmoid(const Input& x);
Tensor Relu(const Input& x);  // gradient 0 at 0
Tensor Silu(const Input& x);

enum class GeluKind : uint8_t { kTanh, kErf };
Tensor Gelu(const Input& x, GeluKind kind = GeluKind::kTanh);

// With NumPy's broadcasting; both of one dtype.
Tensor Add(const Input& a, const Input& b);
Tensor Sub(const Input& a, const Input& b);
Tensor Mul(const Input& a, const Input& b);
Tensor Div(const Input& a, const Input& b);

Tensor Scale(const Input& x, double factor);
Tensor AddScalar(const Input& x, double shift);

}  // namespace tessera
