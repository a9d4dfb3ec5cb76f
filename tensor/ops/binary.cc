// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/binary.h"

#include "tensor/ops/check.h"
#include "tensor/ops/reduce.h"

namespace tessera::ops {

const char* Name(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "add";
    case BinaryOp::kSub:
      return "sub";
    case BinaryOp::kMul:
      return "mul";
    case BinaryOp::kDiv:
      return "div";
  }
  return "binary";
}

BinaryReads BinaryGradReads(BinaryOp op, BinarySide side) {
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kSub:
      return {};
    case BinaryOp::kMul:
      return {.a = side == BinarySide::kB, .b = side == BinarySide::kA};
    case BinaryOp::kDiv:
      return {.a = side == BinarySide::kB, .b = true};
  }
  return {.a = true, .b = true};
}

int64_t BinaryWorkspaceNumel(const Shape& y, const Shape& operand) {
  return y == operand ? 0 : PlanSum("binary", y, operand).workspace_numel();
}

void BinaryForward(const BinaryForwardArgs& args) {
  const char* op = Name(args.op);
  CheckFloating(op, {"a", args.a});
  CheckSameDType(op, {{"a", args.a}, {"b", args.b}, {"y", args.y}});
  CheckSameDevice(op, {{"a", args.a}, {"b", args.b}, {"y", args.y}});
  CheckShape(op, {"y", args.y}, BroadcastShapes(args.a.shape(), args.b.shape(), op));
  CheckNoOverlap(op, {"y", args.y});
  switch (BackendFor(op, args.y)) {
    case Backend::kCpu:
      return cpu::BinaryForward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

void BinaryBackward(const BinaryBackwardArgs& args) {
  const char* op = Name(args.op);
  CheckFloating(op, {"dy", args.dy});
  const auto check_operand = [&](const Named& operand) {
    CheckSameDType(op, {{"dy", args.dy}, operand});
    CheckSameDevice(op, {{"dy", args.dy}, operand});
    PlanSum(op, args.dy.shape(), operand.view.shape());  // throws if it does not broadcast to dy
  };
  struct Gradient {
    const char* name;
    BinarySide side;
    const View& view;
  };
  for (const Gradient& grad : {Gradient{"da", BinarySide::kA, args.da}, Gradient{"db", BinarySide::kB, args.db}}) {
    if (!grad.view.present()) continue;
    CheckFloating(op, {grad.name, grad.view});
    CheckSameDevice(op, {{"dy", args.dy}, {grad.name, grad.view}});
    CheckNoOverlap(op, {grad.name, grad.view});
    CheckSumWorkspace(op, PlanSum(op, args.dy.shape(), grad.view.shape()), args.workspace, args.dy.dtype);
    const BinaryReads reads = BinaryGradReads(args.op, grad.side);
    if (reads.a) check_operand({"a", args.a});
    if (reads.b) check_operand({"b", args.b});
  }
  switch (BackendFor(op, args.dy)) {
    case Backend::kCpu:
      return cpu::BinaryBackward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
