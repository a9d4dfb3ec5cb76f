// SPDX-License-Identifier: Apache-2.0
// Differentiable softmax and its logarithm over the last dimension. Rules for masked rows: tensor/ops/softmax.h.
//
//   Tensor weights = Softmax(scores);
#pragma once

#include "autograd/param.h"

namespace tessera {

// x (..., C) -> (..., C)
Tensor Softmax(const Input& x);
Tensor LogSoftmax(const Input& x);

}  // namespace tessera
