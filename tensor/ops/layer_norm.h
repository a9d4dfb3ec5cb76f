// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last dimension: y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + eps),
// the variance from a second pass over the row. J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016. With
// a residual the sum is made first, and normalised as it was rounded: sum = x + residual takes the place of x.
//
// x, y, residual, sum (..., C): rows dense, other dims with any strides. weight, bias (C), the bias optional. mean,
// rstd (rows): the accumulation type, contiguous. All but these two share one floating dtype; sums are in f32 (f64 for
// f64). y or sum may be x. C = 0 and no rows are legal.
//
// Backward, where x is what was normalised: with g = dy * weight and n = (x - mean) * rstd,
//   dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum, which is the gradient of the residual too;
//   dweight[c] = sum over rows dy * n;  dbias[c] = sum over rows dy.
// dweight and dbias may be of another floating dtype and add to their buffers with accumulate_*. Rows are summed in
// blocks of 64 in a fixed order: the bits do not depend on the number of threads. Workspace: LayerNormWorkspaceNumel()
// elements.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct LayerNormForwardArgs {
  ConstView x, weight;
  ConstView bias = {};  // optional
  View y, mean, rstd;
  double eps = 1e-5;
  ConstView residual = {};  // optional
  View sum = {};            // needed with residual
};

struct LayerNormBackwardArgs {
  ConstView dy, x, weight, mean, rstd;
  ConstView dsum = {};  // optional
  View dx = {};         // optional
  View dweight = {};    // optional
  View dbias = {};      // optional
  bool accumulate_dweight = false;
  bool accumulate_dbias = false;
  View workspace = {};  // of the accumulation type; needed with dweight and dbias
};

void LayerNormForward(const LayerNormForwardArgs& args);
void LayerNormBackward(const LayerNormBackwardArgs& args);
int64_t LayerNormWorkspaceNumel(int64_t rows, int64_t width);

inline constexpr int64_t kLayerNormRowBlock = 64;  // rows whose dweight and dbias are summed before the blocks are

TESSERA_CPU_KERNEL(LayerNormForward, LayerNormForwardArgs)
TESSERA_CPU_KERNEL(LayerNormBackward, LayerNormBackwardArgs)

}  // namespace tessera::ops
