// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/gemm.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "matmul";

Shape BatchOf(const ConstView& view) {
  Shape batch;
  for (int dim = 0; dim + 2 < view.rank(); ++dim) batch.push_back(view.size(dim));
  return batch;
}

void CheckMatrix(const Named& arg) {
  CheckFloating(kOp, arg);
  if (arg.view.rank() >= 2) return;
  throw Error(Str(kOp, ": ", arg.name, " must have at least two dimensions, got shape ", arg.view.shape()));
}

void CheckProductShape(const GemmArgs& args) {
  const ConstView &a = args.a, &b = args.b;
  const int64_t m = a.size(a.rank() - 2), k = a.size(a.rank() - 1), n = b.size(b.rank() - 1);
  if (b.size(b.rank() - 2) != k) {
    throw Error(Str(kOp, ": a ", a.shape(), " has ", k, " columns, b ", b.shape(), " has ", b.size(b.rank() - 2),
                    " rows; they must be equal"));
  }
  Shape expected = BroadcastShapes(BatchOf(a), BatchOf(b), kOp);
  expected.push_back(m);
  expected.push_back(n);
  CheckShape(kOp, {"c", args.c}, expected);
}

void CheckEpilogue(const GemmArgs& args) {
  if (args.bias.present()) {
    CheckFloating(kOp, {"bias", args.bias});
    CheckShape(kOp, {"bias", args.bias}, {args.c.shape().back()});
    CheckSameDevice(kOp, {{"c", args.c}, {"bias", args.bias}});
  }
  if (args.pre_activation.present()) {
    CheckFloating(kOp, {"pre_activation", args.pre_activation});
    CheckSameShape(kOp, {"c", args.c}, {"pre_activation", args.pre_activation});
    CheckSameDevice(kOp, {{"c", args.c}, {"pre_activation", args.pre_activation}});
    CheckNoOverlap(kOp, {"pre_activation", args.pre_activation});
  }
}

// Joins the leading dims of a and c with M where b is one matrix and the strides allow it: (B, T, C) x (C, N) is then
// one product instead of B small ones.
GemmArgs FoldBatch(const GemmArgs& args) {
  if (args.b.rank() > 2 || args.c.rank() == 2 || args.a.rank() != args.c.rank() || args.pre_activation.present()) {
    return args;
  }
  GemmArgs folded = args;
  const int rank = args.c.rank();
  const int64_t n = args.c.size(rank - 1), k = args.a.size(rank - 1);
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < rank; ++dim) rows *= args.c.size(dim);
  if (!args.a.layout.TryReshape({rows, k}, &folded.a.layout)) return args;
  if (!args.c.layout.TryReshape({rows, n}, &folded.c.layout)) return args;
  return folded;
}

}  // namespace

void Gemm(const GemmArgs& args) {
  CheckMatrix({"a", args.a});
  CheckMatrix({"b", args.b});
  CheckMatrix({"c", args.c});
  CheckSameDevice(kOp, {{"a", args.a}, {"b", args.b}, {"c", args.c}});
  CheckProductShape(args);
  CheckNoOverlap(kOp, {"c", args.c});
  CheckEpilogue(args);
  switch (BackendFor(kOp, args.c)) {
    case Backend::kCpu:
      return cpu::Gemm(FoldBatch(args));
    case Backend::kCuda:
      return cuda::Gemm(FoldBatch(args));
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
