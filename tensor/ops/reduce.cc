// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

#include <algorithm>

#include "tensor/ops/check.h"
#include "tensor/ops/fill.h"

namespace tessera::ops {
namespace {

void CheckMaxShape(const char* op, const Named& x, const Named& out, int dim) {
  Shape expected = x.view.shape();
  expected[NormalizeDim(dim, x.view.rank(), op)] = 1;
  CheckShape(op, out, expected);
}

}  // namespace

SumPlan PlanSum(const char* op, const Shape& x, const Shape& out) {
  const int extra = x.rank() - out.rank();
  SumPlan plan;
  bool fits = extra >= 0;
  for (int dim = 0; dim < x.rank() && fits; ++dim) {
    const int64_t kept = dim < extra ? 1 : out[dim - extra];
    fits = kept == x[dim] || kept == 1;
    plan.outputs *= kept;
    if (kept != x[dim]) plan.terms *= x[dim];
  }
  if (!fits) throw Error(Str(op, ": out has shape ", out, ", which does not broadcast to ", x));
  // Many outputs keep every thread busy as they are; fewer are cut into segments of about 2^16 elements, counting up to
  // 256 outputs side by side.
  constexpr int64_t kManyOutputs = 4096, kSegment = 65536, kStep = 512;
  plan.segment_terms = plan.terms;
  if (plan.outputs > 0 && plan.outputs < kManyOutputs) {
    const int64_t wanted = kSegment / std::min<int64_t>(plan.outputs, 256);
    plan.segment_terms = (wanted + kStep - 1) / kStep * kStep;
    plan.segments = std::max<int64_t>(1, (plan.terms + plan.segment_terms - 1) / plan.segment_terms);
  }
  return plan;
}

void CheckSumWorkspace(const char* op, const SumPlan& plan, const ConstView& workspace, DType dtype) {
  const int64_t needed = plan.workspace_numel();
  if (needed == 0) return;
  CheckDType(op, {"workspace", workspace}, IsFloating(dtype) ? DType::kF64 : DType::kI64);
  CheckContiguous(op, {"workspace", workspace});
  if (workspace.numel() < needed) {
    throw Error(Str(op, ": workspace has ", workspace.numel(), " elements, this sum needs ", needed));
  }
}

void ReduceSum(const ReduceSumArgs& args) {
  const char* op = args.mean ? "mean" : "sum";
  if (IsFloating(args.x.dtype)) {
    CheckFloating(op, {"out", args.out});
  } else {
    if (args.mean || args.accumulate) CheckFloating(op, {"x", args.x});
    CheckDType(op, {"out", args.out}, DType::kI64);
  }
  CheckSameDevice(op, {{"x", args.x}, {"out", args.out}});
  CheckNoOverlap(op, {"out", args.out});
  const SumPlan plan = PlanSum(op, args.x.shape(), args.out.shape());
  if (args.mean && plan.terms == 0) {
    throw Error(Str(op, ": x has shape ", args.x.shape(), " and out ", args.out.shape(), ": a mean over nothing"));
  }
  CheckSumWorkspace(op, plan, args.workspace, args.x.dtype);
  switch (BackendFor(op, args.x)) {
    case Backend::kCpu:
      return cpu::ReduceSum(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

void ReduceMax(const ReduceMaxArgs& args) {
  constexpr const char* kOp = "max";
  CheckFloating(kOp, {"x", args.x});
  CheckSameDType(kOp, {{"x", args.x}, {"out", args.out}});
  CheckSameDevice(kOp, {{"x", args.x}, {"out", args.out}});
  CheckNoOverlap(kOp, {"out", args.out});
  CheckMaxShape(kOp, {"x", args.x}, {"out", args.out}, args.dim);
  if (args.x.size(args.dim) == 0) {
    throw Error(Str(kOp, ": dim ", args.dim, " of x has size 0 (shape ", args.x.shape(), "): a maximum over nothing"));
  }
  if (args.index.present()) {
    CheckDType(kOp, {"index", args.index}, DType::kI64);
    CheckSameShape(kOp, {"out", args.out}, {"index", args.index});
    CheckSameDevice(kOp, {{"x", args.x}, {"index", args.index}});
    CheckNoOverlap(kOp, {"index", args.index});
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::ReduceMax(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void ReduceMaxBackward(const ReduceMaxBackwardArgs& args) {
  constexpr const char* kOp = "max";
  CheckFloating(kOp, {"dy", args.dy});
  CheckFloating(kOp, {"dx", args.dx});
  CheckDType(kOp, {"index", args.index}, DType::kI64);
  CheckSameDevice(kOp, {{"dx", args.dx}, {"dy", args.dy}, {"index", args.index}});
  CheckNoOverlap(kOp, {"dx", args.dx});
  CheckMaxShape(kOp, {"dx", args.dx}, {"dy", args.dy}, args.dim);
  CheckSameShape(kOp, {"dy", args.dy}, {"index", args.index});
  if (!args.accumulate) Fill({.out = args.dx, .value = 0});
  switch (BackendFor(kOp, args.dx)) {
    case Backend::kCpu:
      return cpu::ReduceMaxBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
