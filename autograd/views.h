// SPDX-License-Identifier: Apache-2.0
// Differentiable changes of layout and dtype. Of a tensor each gives a view, which shares memory and version counter with
// it, unless it says "copies". Of a parameter each gives a copy, since a view of a parameter is a ParamRef: use ParamRef's
// own Transpose, Narrow and Reshape to stay without one.
//
//   Tensor heads = Transpose(Reshape(x, {batch, tokens, 4, -1}), 1, 2);   // (B, H, T, D)
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "autograd/param.h"

namespace tessera {

// One size may be -1. Copies where the strides allow no view.
Tensor Reshape(const Input& x, const Shape& shape);
Tensor Transpose(const Input& x, int dim0, int dim1);
Tensor Permute(const Input& x, std::span<const int> order);
inline Tensor Permute(const Input& x, std::initializer_list<int> order) {
  return Permute(x, std::span<const int>(order.begin(), order.size()));
}
Tensor Narrow(const Input& x, int dim, int64_t start, int64_t length);
Tensor Select(const Input& x, int dim, int64_t index);  // Narrow to one, and the dim is gone
// By NumPy's rule, through stride 0: nobody may write to the result.
Tensor Expand(const Input& x, const Shape& shape);
Tensor Squeeze(const Input& x, int dim);    // drops a dim of size 1
Tensor Unsqueeze(const Input& x, int dim);  // puts a dim of size 1 at `dim`
// `parts` equal pieces along dim, whose gradients are written into one.
std::vector<Tensor> Split(const Input& x, int parts, int dim);

// x itself if it is row-major without gaps, else copies.
Tensor Contiguous(const Input& x);
// Copies. All of one dtype, and of one shape but for `dim`.
Tensor Concat(std::span<const Tensor> tensors, int dim);
inline Tensor Concat(std::initializer_list<Tensor> tensors, int dim) {
  return Concat(std::span<const Tensor>(tensors.begin(), tensors.size()), dim);
}
// x itself if it has that dtype, else copies. Only floating to floating passes a gradient on.
Tensor Cast(const Input& x, DType dtype);

}  // namespace tessera
