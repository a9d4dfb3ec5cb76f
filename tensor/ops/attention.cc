// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/attention.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "attention";

void CheckHeads(const Named& arg) {
  CheckRank(kOp, arg, 4);
  CheckDenseRows(kOp, arg);
}

void CheckOutput(const Named& like, const Named& arg) {
  CheckSameShape(kOp, like, arg);
  CheckSameDType(kOp, {like, arg});
  CheckSameDevice(kOp, {like, arg});
  CheckDenseRows(kOp, arg);
  CheckNoOverlap(kOp, arg);
}

void CheckPerQuery(const ConstView& q, const Named& arg) {
  CheckShape(kOp, arg, {q.size(0), q.size(2), q.size(1)});
  CheckDType(kOp, arg, AccumulationType(q.dtype));
  CheckSameDevice(kOp, {{"q", q}, arg});
  CheckContiguous(kOp, arg);
}

void CheckInputs(const ConstView& q, const ConstView& k, const ConstView& v) {
  CheckHeads({"q", q});
  CheckHeads({"k", k});
  CheckHeads({"v", v});
  CheckFloating(kOp, {"q", q});
  CheckSameDType(kOp, {{"q", q}, {"k", k}, {"v", v}});
  CheckSameDevice(kOp, {{"q", q}, {"k", k}, {"v", v}});
  CheckSameShape(kOp, {"k", k}, {"v", v});
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3)) {
    throw Error(Str(kOp, ": q has shape ", q.shape(), ", k has ", k.shape(), "; batch and head size must be equal"));
  }
  const int64_t heads = q.size(2), kv_heads = k.size(2);
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    throw Error(Str(kOp, ": ", heads, " query heads are not a multiple of ", kv_heads, " key heads"));
  }
}

}  // namespace

void AttentionForward(const AttentionForwardArgs& args) {
  CheckInputs(args.q, args.k, args.v);
  CheckOutput({"q", args.q}, {"y", args.y});
  if (args.log_sum.present()) CheckPerQuery(args.q, {"log_sum", args.log_sum});
  switch (BackendFor(kOp, args.q)) {
    case Backend::kCpu:
      return cpu::AttentionForward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void AttentionBackward(const AttentionBackwardArgs& args) {
  CheckInputs(args.q, args.k, args.v);
  CheckSameShape(kOp, {"q", args.q}, {"y", args.y});
  CheckSameShape(kOp, {"q", args.q}, {"dy", args.dy});
  CheckSameDType(kOp, {{"q", args.q}, {"y", args.y}, {"dy", args.dy}});
  CheckDenseRows(kOp, {"y", args.y});
  CheckDenseRows(kOp, {"dy", args.dy});
  CheckPerQuery(args.q, {"log_sum", args.log_sum});
  CheckPerQuery(args.q, {"workspace", args.workspace});
  CheckOutput({"q", args.q}, {"dq", args.dq});
  CheckOutput({"k", args.k}, {"dk", args.dk});
  CheckOutput({"v", args.v}, {"dv", args.dv});
  switch (BackendFor(kOp, args.q)) {
    case Backend::kCpu:
      return cpu::AttentionBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
