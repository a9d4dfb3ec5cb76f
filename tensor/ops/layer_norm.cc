// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/layer_norm.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "layer_norm";

void CheckStatistic(const ConstView& x, const Named& arg) {
  CheckSameDevice(kOp, {{"x", x}, arg});
  CheckShape(kOp, arg, {RowCount(x.shape())});
  CheckDType(kOp, arg, AccumulationType(x.dtype));
  CheckContiguous(kOp, arg);
}

void CheckPerColumn(const ConstView& x, const Named& arg) {
  CheckSameDevice(kOp, {{"x", x}, arg});
  CheckShape(kOp, arg, {x.shape().back()});
  CheckDenseRows(kOp, arg);
}

void CheckGradPerColumn(const ConstView& x, const Named& arg) {
  CheckPerColumn(x, arg);
  CheckFloating(kOp, arg);
}

void CheckLikeX(const ConstView& x, const Named& arg) {
  CheckSameShape(kOp, {"x", x}, arg);
  CheckSameDType(kOp, {{"x", x}, arg});
  CheckSameDevice(kOp, {{"x", x}, arg});
  CheckDenseRows(kOp, arg);
}

void CheckInputs(const ConstView& x, const ConstView& weight, const ConstView& mean, const ConstView& rstd) {
  if (x.rank() == 0) throw Error("layer_norm: x must have at least one dimension");
  CheckFloating(kOp, {"x", x});
  CheckDenseRows(kOp, {"x", x});
  CheckPerColumn(x, {"weight", weight});
  CheckSameDType(kOp, {{"x", x}, {"weight", weight}});
  CheckStatistic(x, {"mean", mean});
  CheckStatistic(x, {"rstd", rstd});
}

}  // namespace

int64_t LayerNormWorkspaceNumel(int64_t rows, int64_t width) {
  return (rows + kLayerNormRowBlock - 1) / kLayerNormRowBlock * width * 2;
}

void LayerNormForward(const LayerNormForwardArgs& args) {
  CheckInputs(args.x, args.weight, args.mean, args.rstd);
  if (args.bias.present()) {
    CheckPerColumn(args.x, {"bias", args.bias});
    CheckSameDType(kOp, {{"x", args.x}, {"bias", args.bias}});
  }
  CheckLikeX(args.x, {"y", args.y});
  CheckNoOverlap(kOp, {"y", args.y});
  if (args.residual.present()) {
    CheckLikeX(args.x, {"residual", args.residual});
    CheckLikeX(args.x, {"sum", args.sum});
    CheckNoOverlap(kOp, {"sum", args.sum});
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::LayerNormForward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void LayerNormBackward(const LayerNormBackwardArgs& args) {
  CheckInputs(args.x, args.weight, args.mean, args.rstd);
  CheckLikeX(args.x, {"dy", args.dy});
  if (args.dsum.present()) CheckLikeX(args.x, {"dsum", args.dsum});
  if (args.dx.present()) {
    CheckLikeX(args.x, {"dx", args.dx});
    CheckNoOverlap(kOp, {"dx", args.dx});
  }
  if (args.dweight.present()) CheckGradPerColumn(args.x, {"dweight", args.dweight});
  if (args.dbias.present()) CheckGradPerColumn(args.x, {"dbias", args.dbias});
  if (args.dweight.present() || args.dbias.present()) {
    CheckShape(kOp, {"workspace", args.workspace},
               {LayerNormWorkspaceNumel(RowCount(args.x.shape()), args.x.shape().back())});
    CheckDType(kOp, {"workspace", args.workspace}, AccumulationType(args.x.dtype));
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::LayerNormBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
