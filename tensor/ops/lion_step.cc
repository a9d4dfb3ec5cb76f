// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/lion_step.h"

#include "tensor/ops/flat_step.h"

namespace tessera::ops {

void LionStep(const LionStepArgs& args) {
  CheckFlatStep("lion_step", args.master, args.gradient, {{"exp_avg", args.exp_avg}}, args.low_precision, args.scalars);
  switch (BackendFor("lion_step", args.master)) {
    case Backend::kCpu:
      return cpu::LionStep(args);
    case Backend::kCuda:
      NoCudaKernel("lion_step");
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
