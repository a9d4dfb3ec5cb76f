// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/scale.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void Scale(const ScaleArgs& args) {
  constexpr const char* kOp = "scale";
  CheckFloating(kOp, {"x", args.x});
  CheckFloating(kOp, {"out", args.out});
  CheckSameShape(kOp, {"x", args.x}, {"out", args.out});
  CheckSameDevice(kOp, {{"x", args.x}, {"out", args.out}});
  CheckNoOverlap(kOp, {"out", args.out});
  if (args.factor_tensor.present()) {
    const ConstView& factor = args.factor_tensor;
    CheckSameDevice(kOp, {{"x", args.x}, {"factor_tensor", factor}});
    if (factor.numel() != 1 || (factor.dtype != DType::kF32 && factor.dtype != DType::kF64)) {
      throw Error(Str(kOp, ": factor_tensor is ", Name(factor.dtype), " ", factor.shape(),
                      ", expected one element of f32 or f64"));
    }
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::Scale(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
