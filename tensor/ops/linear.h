// SPDX-License-Identifier: Apache-2.0
// y = x W^T + b, with an optional GELU (tanh form) behind it; and its gradients.
//
// x (..., in), y (..., out), weight (out, in), bias (out), optional. x and y: the last dimension dense, and leading
// dims whose strides let them be read as one, so that the rows are one matrix; weight: any strides (a transposed or
// expanded view is fine). One floating dtype for x, weight, bias and y. Sums in f32 (f64 for f64), rounded once. Zero
// rows, in = 0 and out = 0 are legal. With `gelu`, y = GELU(s) from the unrounded s = x W^T + b, and pre_activation
// (..., out), optional, receives s: the input of GELU's backward.
//
// Backward of the part without GELU (give it the gradient at s):
//   dx = dy W,  dweight = dy^T x,  dbias[o] = sum over rows of dy[., o]
// each only where its view is present, each of any floating dtype (a gradient target), each added to its buffer with
// its accumulate flag. weight is needed for dx alone and x for dweight alone: dbias reads neither. dweight: any strides
// without overlap. dbias is summed in f32 (f64) in blocks of 64 rows, and those in order in f64: like the products, its
// bits do not depend on the number of threads. No workspace; no output shares memory with an input.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct LinearForwardArgs {
  ConstView x, weight;
  ConstView bias = {};  // optional
  View y;
  bool gelu = false;
  View pre_activation = {};  // optional, with gelu
};

struct LinearBackwardArgs {
  ConstView dy;
  ConstView x = {};       // with dweight
  ConstView weight = {};  // with dx
  View dx = {};           // optional
  View dweight = {};      // optional
  View dbias = {};        // optional
  bool accumulate_dx = false, accumulate_dweight = false, accumulate_dbias = false;
};

void LinearForward(const LinearForwardArgs& args);
void LinearBackward(const LinearBackwardArgs& args);

// The CPU kernel of its own; the products are Gemm's. dy (rows, out) with dense rows.
struct ColumnSumArgs {
  ConstView dy;
  View dbias;
  bool accumulate = false;
};

TESSERA_CPU_KERNEL(ColumnSum, ColumnSumArgs)
TESSERA_CUDA_KERNEL(ColumnSum, ColumnSumArgs)

}  // namespace tessera::ops
