// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/dropout.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void Dropout(const DropoutArgs& args) {
  constexpr const char* kOp = "dropout";
  if (!(args.p >= 0 && args.p <= 1)) throw Error(Str(kOp, ": p is ", args.p, ", expected a number in [0, 1]"));
  CheckFloating(kOp, {"x", args.x});
  CheckSameDType(kOp, {{"x", args.x}, {"y", args.y}});
  CheckSameShape(kOp, {"x", args.x}, {"y", args.y});
  CheckSameDevice(kOp, {{"x", args.x}, {"y", args.y}});
  CheckNoOverlap(kOp, {"y", args.y});
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::Dropout(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
