// SPDX-License-Identifier: Apache-2.0
// Differentiable sums, means and maxima. Accuracy and order are those of tensor/ops/reduce.h.
//
//   Tensor loss = Mean(Square(Sub(y, target)));
#pragma once

#include <span>

#include "autograd/param.h"

namespace tessera {

// Over everything, to a tensor of rank 0. Integers sum to i64. A mean over nothing is an error, a sum is 0.
Tensor Sum(const Input& x);
Tensor Mean(const Input& x);

// Over the named dims, negative ones counted from the end; `keepdim` leaves each with size 1.
Tensor Sum(const Input& x, std::span<const int> dims, bool keepdim = false);
Tensor Mean(const Input& x, std::span<const int> dims, bool keepdim = false);
Tensor Sum(const Input& x, int dim, bool keepdim = false);
Tensor Mean(const Input& x, int dim, bool keepdim = false);
// The gradient goes to the first of equal maxima.
Tensor Max(const Input& x, int dim, bool keepdim = false);

}  // namespace tessera
