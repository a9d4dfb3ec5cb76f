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
  CheckShape(kOp, {"rstd", rstd}, {RowCount(x.shape())});
  CheckDType(kOp, {"rstd", rstd}, AccumulationType(x.dtype));
  CheckContiguous(kOp, {"rstd", rstd});
}

void CheckLikeX(const ConstView& x, const Named& arg) {
  CheckSameShape(kOp, {"x", x}, arg);
  CheckSameDType(kOp, {{"x", x}, arg});
  CheckSameDevice(kOp, {{"x", x}, arg});
  CheckDenseRows(kOp, arg);
}

}  // namespace

int64_t RmsNormWorkspaceNumel(int64_t rows, int64_t width) {
  return (rows + kNormRowBlock - 1) / kNormRowBlock * width;
}

void RmsNormForward(const RmsNormForwardArgs& args) {
  CheckInputs(args.x, args.weight, args.rstd);
  CheckLikeX(args.x, {"y", args.y});
  CheckNoOverlap(kOp, {"y", args.y});
  if (args.residual.present()) {
    CheckLikeX(args.x, {"residual", args.residual});
    CheckLikeX(args.x, {"sum", args.sum});
    CheckNoOverlap(kOp, {"sum", args.sum});
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::RmsNormForward(args);
    case Backend::kCuda:
      return cuda::RmsNormForward(args);
    case Backend::kNone:
      return;
  }
}

void RmsNormBackward(const RmsNormBackwardArgs& args) {
  CheckInputs(args.x, args.weight, args.rstd);
  CheckLikeX(args.x, {"dy", args.dy});
  if (args.dsum.present()) CheckLikeX(args.x, {"dsum", args.dsum});
  if (args.dx.present()) {
    CheckLikeX(args.x, {"dx", args.dx});
    CheckNoOverlap(kOp, {"dx", args.dx});
  }
  if (args.dweight.present()) {
    CheckShape(kOp, {"dweight", args.dweight}, args.weight.shape());
    CheckFloating(kOp, {"dweight", args.dweight});
    CheckDenseRows(kOp, {"dweight", args.dweight});
    CheckSameDevice(kOp, {{"x", args.x}, {"dweight", args.dweight}, {"workspace", args.workspace}});
    CheckShape(kOp, {"workspace", args.workspace},
               {RmsNormWorkspaceNumel(RowCount(args.x.shape()), args.x.shape().back())});
    CheckDType(kOp, {"workspace", args.workspace}, AccumulationType(args.x.dtype));
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::RmsNormBackward(args);
    case Backend::kCuda:
      return cuda::RmsNormBackward(args);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
