// SPDX-License-Identifier: Apache-2.0
// Differentiable normalisations. Shapes and rules are those of the raw ops in tensor/ops/.
#pragma once

#include "autograd/param.h"

namespace tessera {

// x (..., C), weight (C) -> (..., C)
Tensor RmsNorm(const Input& x, const Input& weight, double eps);

}  // namespace tessera
