// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/adam_step.h"

#include "tensor/ops/flat_step.h"

namespace tessera::ops {

void AdamStep(const AdamStepArgs& args) {
  CheckFlatStep("adam_step", args.master, args.gradient, {{"exp_avg", args.exp_avg}, {"exp_avg_sq", args.exp_avg_sq}},
                args.low_precision, args.scalars);
  switch (BackendFor("adam_step", args.master)) {
    case Backend::kCpu:
      return cpu::AdamStep(args);
    case Backend::kCuda:
      NoCudaKernel("adam_step");
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
