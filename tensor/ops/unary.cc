// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/unary.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

const char* Name(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return "neg";
    case UnaryOp::kExp:
      return "exp";
    case UnaryOp::kLog:
      return "log";
    case UnaryOp::kSqrt:
      return "sqrt";
    case UnaryOp::kRsqrt:
      return "rsqrt";
    case UnaryOp::kSquare:
      return "square";
    case UnaryOp::kAbs:
      return "abs";
    case UnaryOp::kReciprocal:
      return "reciprocal";
    case UnaryOp::kTanh:
      return "tanh";
    case UnaryOp::kSigmoid:
      return "sigmoid";
    case UnaryOp::kRelu:
      return "relu";
    case UnaryOp::kSilu:
      return "silu";
    case UnaryOp::kGeluTanh:
      return "gelu_tanh";
    case UnaryOp::kGeluErf:
      return "gelu_erf";
  }
  return "unary";
}

UnarySaved SavedFor(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return UnarySaved::kNothing;
    case UnaryOp::kExp:
    case UnaryOp::kSqrt:
    case UnaryOp::kRsqrt:
    case UnaryOp::kReciprocal:
    case UnaryOp::kTanh:
    case UnaryOp::kSigmoid:
    case UnaryOp::kRelu:
      return UnarySaved::kY;
    case UnaryOp::kLog:
    case UnaryOp::kSquare:
    case UnaryOp::kAbs:
    case UnaryOp::kSilu:
    case UnaryOp::kGeluTanh:
    case UnaryOp::kGeluErf:
      return UnarySaved::kX;
  }
  return UnarySaved::kX;
}

void UnaryForward(const UnaryForwardArgs& args) {
  const char* op = Name(args.op);
  CheckFloating(op, {"x", args.x});
  CheckSameDType(op, {{"x", args.x}, {"y", args.y}});
  CheckSameShape(op, {"x", args.x}, {"y", args.y});
  CheckSameDevice(op, {{"x", args.x}, {"y", args.y}});
  CheckNoOverlap(op, {"y", args.y});
  switch (BackendFor(op, args.x)) {
    case Backend::kCpu:
      return cpu::UnaryForward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

void UnaryBackward(const UnaryBackwardArgs& args) {
  const char* op = Name(args.op);
  CheckFloating(op, {"dy", args.dy});
  CheckFloating(op, {"dx", args.dx});
  CheckSameShape(op, {"dy", args.dy}, {"dx", args.dx});
  CheckSameDevice(op, {{"dy", args.dy}, {"dx", args.dx}});
  CheckNoOverlap(op, {"dx", args.dx});
  if (SavedFor(args.op) != UnarySaved::kNothing) {
    CheckSameDType(op, {{"dy", args.dy}, {"saved", args.saved}});
    CheckSameShape(op, {"dy", args.dy}, {"saved", args.saved});
    CheckSameDevice(op, {{"dy", args.dy}, {"saved", args.saved}});
  }
  switch (BackendFor(op, args.dy)) {
    case Backend::kCpu:
      return cpu::UnaryBackward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
