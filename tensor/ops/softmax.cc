// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/softmax.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

void CheckOutput(const char* op, const Named& x, const Named& y) {
  CheckSameShape(op, x, y);
  CheckSameDType(op, {x, y});
  CheckSameDevice(op, {x, y});
  CheckDenseRows(op, y);
  CheckNoOverlap(op, y);
}

void CheckInput(const char* op, const Named& x) {
  if (x.view.rank() == 0) throw Error(Str(op, ": ", x.name, " must have at least one dimension"));
  CheckFloating(op, x);
  CheckDenseRows(op, x);
}

}  // namespace

void SoftmaxForward(const SoftmaxForwardArgs& args) {
  const char* op = args.log ? "log_softmax" : "softmax";
  CheckInput(op, {"x", args.x});
  CheckOutput(op, {"x", args.x}, {"y", args.y});
  switch (BackendFor(op, args.x)) {
    case Backend::kCpu:
      return cpu::SoftmaxForward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

void SoftmaxBackward(const SoftmaxBackwardArgs& args) {
  const char* op = args.log ? "log_softmax" : "softmax";
  CheckInput(op, {"y", args.y});
  CheckSameShape(op, {"y", args.y}, {"dy", args.dy});
  CheckSameDType(op, {{"y", args.y}, {"dy", args.dy}});
  CheckDenseRows(op, {"dy", args.dy});
  CheckOutput(op, {"y", args.y}, {"dx", args.dx});
  switch (BackendFor(op, args.y)) {
    case Backend::kCpu:
      return cpu::SoftmaxBackward(args);
    case Backend::kCuda:
      NoCudaKernel(op);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
