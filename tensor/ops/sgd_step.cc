// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/sgd_step.h"

#include "tensor/ops/flat_step.h"

namespace tessera::ops {

void SgdStep(const SgdStepArgs& args) {
  if (args.momentum_buffer.present()) {
    CheckFlatStep("sgd_step", args.master, args.gradient, {{"momentum_buffer", args.momentum_buffer}},
                  args.low_precision, args.scalars);
  } else {
    CheckFlatStep("sgd_step", args.master, args.gradient, {}, args.low_precision, args.scalars);
    if (args.nesterov) throw Error("sgd_step: nesterov is set and momentum_buffer is absent; nesterov needs momentum");
  }
  switch (BackendFor("sgd_step", args.master)) {
    case Backend::kCpu:
      return cpu::SgdStep(args);
    case Backend::kCuda:
      NoCudaKernel("sgd_step");
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
