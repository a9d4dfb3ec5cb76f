// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/scaled_copy.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void ScaledCopy(const ScaledCopyArgs& args) {
  constexpr const char* kOp = "scaled_copy";
  CheckSameShape(kOp, {"x", args.x}, {"out", args.out});
  CheckSameDevice(kOp, {{"x", args.x}, {"factor", args.factor}, {"out", args.out}});
  CheckFloating(kOp, {"x", args.x});
  CheckFloating(kOp, {"out", args.out});
  CheckNoOverlap(kOp, {"out", args.out});
  CheckShape(kOp, {"factor", args.factor}, {});
  if (args.factor.dtype != DType::kF64) CheckDType(kOp, {"factor", args.factor}, DType::kF32);
  switch (BackendFor(kOp, args.out)) {
    case Backend::kCpu:
      return cpu::ScaledCopy(args);
    case Backend::kCuda:
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
