// SPDX-License-Identifier: Apache-2.0
// Differentiable normalisations over the last dimension, plain and fused with the residual addition before them. Shapes
// and rules are those of the raw ops in tensor/ops/.
//
//   auto [sum, normed] = AddRmsNorm(attention_out, residual, weight, 1e-5);   // sum goes on as the residual stream
#pragma once

#include "autograd/param.h"

namespace tessera {

// x (..., C), weight (C), bias (C) or absent -> (..., C)
Tensor RmsNorm(const Input& x, const Input& weight, double eps);
Tensor LayerNorm(const Input& x, const Input& weight, const Input& bias, double eps);

struct SumAndNorm {
  Tensor sum;     // x + residual
  Tensor normed;  // its normalisation
};

// One node: the gradient that reaches `sum` on its other ways is added in the same pass.
SumAndNorm AddRmsNorm(const Input& x, const Input& residual, const Input& weight, double eps);
SumAndNorm AddLayerNorm(const Input& x, const Input& residual, const Input& weight, const Input& bias, double eps);

}  // namespace tessera
