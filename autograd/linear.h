// SPDX-License-Identifier: Apache-2.0
// Matrix products. Their gradients go straight into the buffers that gradient targets name, added there when told to.
#pragma once

#include "autograd/param.h"

namespace tessera {

// x (..., in), weight (out, in), bias (out) or absent -> x W^T + b (..., out). Backward asks for the weight's data only if x
// wants a gradient, and keeps x only if the weight does.
Tensor Linear(const Input& x, const Input& weight, const Input& bias = {});

// GELU (tanh form) of Linear, fused. Keeps the product before GELU for backward.
Tensor LinearGelu(const Input& x, const Input& weight, const Input& bias = {});

// a (..., M, K), b (..., K, N) -> (..., M, N); leading dims broadcast. Any strides.
Tensor Matmul(const Input& a, const Input& b);

}  // namespace tessera
