// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/rms_norm.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "rms_norm";

void CheckInputs(const ConstView& x, const ConstView& weight, const ConstView& rstd) {
  if (x.rank() == 0) throw Error("rms_norm: x must have at least one dimension");
  CheckFloating(kOp, {"x", x});
  CheckSameDType(kOp, {{"x", x}, {"weight", weight}});
  CheckSameDevice(kOp, {{"x", x}, {"weight", weight}, {"rstd", rstd}});
  CheckDenseRows(kOp, {"x", x});
  CheckShape(kOp, {"weight", weight}, {x.shape().back()});
  CheckDenseRows(kOp, {"weight", weight});
  CheckDType(kOp, {"rstd", rstd}, AccumulationType(x.dtype));
  CheckContiguous(kOp, {"rstd", rstd});
}

}  // namespace

int64_t RmsNormWorkspaceNumel(int64_t rows, int64_t width) {
  return (rows + kNormRowBlock - 1) / kNormRowBlock * width;
}

void RmsNormForward(const RmsNormForwardArgs& args) {
  CheckInputs(args.x, args.weight, args.rstd);
  CheckSameDType(kOp, {{"x", args.x}, {"y", args.y}});
  CheckSameShape(kOp, {"x", args.x}, {"y", args.y});
  CheckDenseRows(kOp, {"y", args.y});
  CheckNoOverlap(kOp, {"y", args.y});
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::RmsNormForward(args);
    case Backend::kCuda:
    case Backend::kNone:
      return;
  }
}

void RmsNormBackward(const RmsNormBackwardArgs& args) {
  CheckInputs(args.x, args.weight, args.rstd);
  CheckSameShape(kOp, {"x", args.x}, {"dy", args.dy});
  CheckSameDType(kOp, {{"x", args.x}, {"dy", args.dy}});
  CheckDenseRows(kOp, {"dy", args.dy});
  if (args.dx.present()) {
    CheckSameShape(kOp, {"x", args.x}, {"dx", args.dx});
    CheckSameDType(kOp, {{"x", args.x}, {"dx", args.dx}});
    CheckDenseRows(kOp, {"dx", args.dx});
    CheckNoOverlap(kOp, {"dx", args.dx});
  }
  if (args.dweight.present()) {
    CheckShape(kOp, {"dweight", args.dweight}, args.weight.shape());
    CheckFloating(kOp, {"dweight", args.dweight});
    CheckDenseRows(kOp, {"dweight", args.dweight});
    const int64_t width = args.x.shape().back();
    const int64_t rows = width == 0 ? 0 : args.x.numel() / width;
    CheckShape(kOp, {"workspace", args.workspace}, {RmsNormWorkspaceNumel(rows, width)});
    CheckDType(kOp, {"workspace", args.workspace}, AccumulationType(args.x.dtype));
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::RmsNormBackward(args);
    case Backend::kCuda:
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
