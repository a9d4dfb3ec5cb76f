// SPDX-License-Identifier: Apache-2.0
// out = sum of x[i]^2, or out += it with `accumulate`: the norm of a gradient and its overflow test in one pass.
//
// x: f32, bf16, f16 or f64, any shape, contiguous. out (1): f64. Workspace: SumSquaresWorkspaceNumel() elements of f64.
// The result is not finite if and only if an element of x is not (or out was not): sums of f64 that would overflow stop
// at the largest finite number.
//
// One written order, the same on every device and for any number of threads. Blocks of kSumBlock elements: lane l of
// kSumLanes adds the squares of elements l, l + kSumLanes, ... of the block in turn, each by one fused multiply-add;
// then lane l adds lane l + w for w = kSumLanes / 2, ..., 2, 1. The sums of blocks are summed in the same way, until
// one is left.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

inline constexpr int64_t kSumBlock = 1024;
inline constexpr int kSumLanes = 32;

struct SumSquaresArgs {
  ConstView x;
  View out;
  View workspace;
  bool accumulate = false;
};

void SumSquares(const SumSquaresArgs& args);
int64_t SumSquaresWorkspaceNumel(int64_t numel);

TESSERA_CPU_KERNEL(SumSquares, SumSquaresArgs)

}  // namespace tessera::ops
