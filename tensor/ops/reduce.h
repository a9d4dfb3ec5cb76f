// SPDX-License-Identifier: Apache-2.0
// Sums, means and maxima over dimensions.
//
// ReduceSum: out = sum of x (its mean with `mean`), or out += it with `accumulate`, over the dims of x that out lacks: out's
// shape broadcasts to x's by NumPy's rule, and where it has size 1, or no dim at all, x is summed. So it is also the
// backward of a broadcast. Any layouts (out without overlap). x floating: out of any floating dtype. x i32, i64 or u8: out
// i64, modulo 2^64; no mean, no accumulate. A sum over nothing is 0, a mean over nothing an error.
//   Blocks of up to 512 elements are summed in f32 (f64 for f64) and the blocks in f64, in an order that shapes and layouts
//   alone determine: the bits do not depend on the number of threads, and 2^31 ones of bf16 make 2147483648.
//   Workspace: PlanSum(x, out).workspace_numel() elements of f64 (i64 for integers).
//
// ReduceMax: out = largest element along `dim`, where out has size 1; index (i64, optional) = its first position. A NaN is
// the largest. x and out: one floating dtype. A maximum over nothing is an error.
// ReduceMaxBackward: dx = dy at `index` and 0 elsewhere, or dx += dy at `index` with `accumulate`.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct ReduceSumArgs {
  ConstView x;
  View out;
  bool mean = false;
  bool accumulate = false;
  View workspace = {};
};

struct ReduceMaxArgs {
  ConstView x;
  View out;
  View index = {};  // optional
  int dim = 0;      // not negative
};

struct ReduceMaxBackwardArgs {
  ConstView dy, index;
  View dx;
  int dim = 0;
  bool accumulate = false;
};

void ReduceSum(const ReduceSumArgs& args);
void ReduceMax(const ReduceMaxArgs& args);
void ReduceMaxBackward(const ReduceMaxBackwardArgs& args);

// How a sum is cut up: each of `outputs` sums of `terms` elements into segments, whose results are added in order.
struct SumPlan {
  int64_t outputs = 1, terms = 1;
  int64_t segments = 1, segment_terms = 1;
  int64_t workspace_numel() const { return segments > 1 ? segments * outputs : 0; }
};
// Throws naming op when `out` does not broadcast to `x`.
SumPlan PlanSum(const char* op, const Shape& x, const Shape& out);
// Checks the workspace of a sum whose terms are of this dtype.
void CheckSumWorkspace(const char* op, const SumPlan& plan, const ConstView& workspace, DType dtype);

TESSERA_CPU_KERNEL(ReduceSum, ReduceSumArgs)
TESSERA_CPU_KERNEL(ReduceMax, ReduceMaxArgs)
TESSERA_CPU_KERNEL(ReduceMaxBackward, ReduceMaxBackwardArgs)

}  // namespace tessera::ops
