// SPDX-License-Identifier: Apache-2.0
// Root mean square normalisation over the last dimension: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
// B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
// With a residual the sum is made first, and normalised as it was rounded: sum = x + residual, y = sum * rstd * weight.
//
// x, y, residual, sum (..., C): rows dense, other dims with any strides. weight (C). rstd (rows): the accumulation
// type, contiguous. x, y, weight, residual and sum share one floating dtype; sums are in f32 (f64 for f64). y or sum
// may be x. C = 0 and no rows are legal.
//
// Backward, where x is what was normalised: with g = dy * weight,  dx = rstd * (g - x * rstd^2 * mean(g * x)) + dsum,
// which is the gradient of the residual too;  dweight[c] = sum over rows dy * x * rstd. dweight may be of another
// floating dtype and adds to its buffer with accumulate_dweight. Rows are summed in blocks of 64 in a fixed order: the
// bits do not depend on the number of threads. Workspace: RmsNormWorkspaceNumel() elements.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct RmsNormForwardArgs {
  ConstView x, weight;
  View y, rstd;
  double eps = 1e-5;
  ConstView residual = {};  // optional
  View sum = {};            // needed with residual
};

struct RmsNormBackwardArgs {
  ConstView dy, x, weight, rstd;
  ConstView dsum = {};  // optional
  View dx = {};         // optional
  View dweight = {};    // optional
  bool accumulate_dweight = false;
  View workspace = {};  // of the accumulation type; needed with dweight
};

void RmsNormForward(const RmsNormForwardArgs& args);
void RmsNormBackward(const RmsNormBackwardArgs& args);
int64_t RmsNormWorkspaceNumel(int64_t rows, int64_t width);

inline constexpr int64_t kNormRowBlock = 64;  // rows whose dweight is summed before the blocks are

TESSERA_CPU_KERNEL(RmsNormForward, RmsNormForwardArgs)
TESSERA_CUDA_KERNEL(RmsNormForward, RmsNormForwardArgs)
TESSERA_CPU_KERNEL(RmsNormBackward, RmsNormBackwardArgs)
TESSERA_CUDA_KERNEL(RmsNormBackward, RmsNormBackwardArgs)

}  // namespace tessera::ops
