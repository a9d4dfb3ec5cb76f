// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/linear.h"

#include "tensor/ops/check.h"
#include "tensor/ops/gemm.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "linear";

void CheckWeight(const ConstView& weight) { CheckRank(kOp, {"weight", weight}, 2); }

// (..., width) with `width` as the other arguments have it.
void CheckFeatures(const Named& arg, int64_t width, const char* meaning) {
  CheckFloating(kOp, arg);
  if (arg.view.rank() == 0) throw Error(Str(kOp, ": ", arg.name, " must have at least one dimension"));
  if (arg.view.shape().back() == width) return;
  throw Error(Str(kOp, ": ", arg.name, " ", arg.view.shape(), " has ", arg.view.shape().back(), " features, ", meaning,
                  " ", width));
}

void CheckSameRows(const Named& a, const Named& b) {
  bool same = a.view.rank() == b.view.rank();
  for (int dim = 0; same && dim + 1 < a.view.rank(); ++dim) same = a.view.size(dim) == b.view.size(dim);
  if (same) return;
  throw Error(Str(kOp, ": ", a.name, " has shape ", a.view.shape(), ", ", b.name, " has ", b.view.shape(),
                  "; all but the last dimension must be equal"));
}

// The layout as one matrix of rows.
Layout RowsOf(const Named& arg) {
  CheckDenseRows(kOp, arg);
  const int64_t width = arg.view.shape().back();
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < arg.view.rank(); ++dim) rows *= arg.view.size(dim);
  Layout layout;
  if (arg.view.layout.TryReshape({rows, width}, &layout)) return layout;
  throw Error(Str(kOp, ": the leading dimensions of ", arg.name, " must be readable as one, got ", arg.view.layout,
                  "; use Contiguous()"));
}

ConstView AsRows(const Named& arg) {
  ConstView view = arg.view;
  view.layout = RowsOf(arg);
  return view;
}

View AsRows(const char* name, const View& out) {
  View view = out;
  view.layout = RowsOf({name, out});
  CheckNoOverlap(kOp, {name, view});
  return view;
}

template <class AnyView>
AnyView TransposedMatrix(AnyView view) {
  view.layout = view.layout.Transpose(0, 1);
  return view;
}

}  // namespace

void LinearForward(const LinearForwardArgs& args) {
  CheckWeight(args.weight);
  const int64_t out = args.weight.size(0), in = args.weight.size(1);
  CheckFeatures({"x", args.x}, in, "weight wants");
  CheckFeatures({"y", args.y}, out, "weight gives");
  CheckSameRows({"x", args.x}, {"y", args.y});
  CheckSameDType(kOp, {{"x", args.x}, {"weight", args.weight}, {"y", args.y}});
  CheckSameDevice(kOp, {{"x", args.x}, {"weight", args.weight}, {"y", args.y}});
  if (args.bias.present()) {
    CheckShape(kOp, {"bias", args.bias}, {out});
    CheckSameDType(kOp, {{"x", args.x}, {"bias", args.bias}});
  }
  GemmArgs gemm{.a = AsRows({"x", args.x}), .b = TransposedMatrix(args.weight), .c = AsRows("y", args.y)};
  gemm.bias = args.bias;
  gemm.gelu = args.gelu;
  if (args.pre_activation.present()) {
    if (!args.gelu) throw Error("linear: pre_activation is what gelu reads; without gelu it is y");
    CheckSameShape(kOp, {"y", args.y}, {"pre_activation", args.pre_activation});
    gemm.pre_activation = AsRows("pre_activation", args.pre_activation);
  }
  Gemm(gemm);
}

void LinearBackward(const LinearBackwardArgs& args) {
  CheckFloating(kOp, {"dy", args.dy});
  if (args.dy.rank() == 0) throw Error("linear: dy must have at least one dimension");
  const int64_t out = args.dy.shape().back();
  const ConstView dy = AsRows({"dy", args.dy});
  if (args.dx.present()) {
    CheckWeight(args.weight);
    CheckFeatures({"dy", args.dy}, args.weight.size(0), "weight gives");
    CheckFeatures({"dx", args.dx}, args.weight.size(1), "weight wants");
    CheckSameRows({"dy", args.dy}, {"dx", args.dx});
    CheckSameDType(kOp, {{"dy", args.dy}, {"weight", args.weight}});
    Gemm({.a = dy, .b = args.weight, .c = AsRows("dx", args.dx), .accumulate = args.accumulate_dx});
  }
  if (args.dweight.present()) {
    if (args.x.rank() == 0) throw Error("linear: x must have at least one dimension");
    CheckSameRows({"dy", args.dy}, {"x", args.x});
    CheckSameDType(kOp, {{"dy", args.dy}, {"x", args.x}});
    CheckShape(kOp, {"dweight", args.dweight}, {out, args.x.shape().back()});
    Gemm({.a = TransposedMatrix(dy),
          .b = AsRows({"x", args.x}),
          .c = args.dweight,
          .accumulate = args.accumulate_dweight});
  }
  if (args.dbias.present()) {
    CheckShape(kOp, {"dbias", args.dbias}, {out});
    CheckFloating(kOp, {"dbias", args.dbias});
    CheckNoOverlap(kOp, {"dbias", args.dbias});
    CheckSameDevice(kOp, {{"dy", args.dy}, {"dbias", args.dbias}});
    switch (BackendFor(kOp, args.dy)) {
      case Backend::kCpu:
        return cpu::ColumnSum({dy, args.dbias, args.accumulate_dbias});
      case Backend::kCuda:
        return cuda::ColumnSum({dy, args.dbias, args.accumulate_dbias});
      case Backend::kNone:
        return;
    }
  }
}

}  // namespace tessera::ops
