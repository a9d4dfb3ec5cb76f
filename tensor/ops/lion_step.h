// SPDX-License-Identifier: Apache-2.0
// One step of Lion over a flat range (operands and promises: flat_step.h).
// X. Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023.
//
//   g = gradient * gradient_factor,   c = beta1 m + (1 - beta1) g
//   p = p (1 - lr * weight_decay) - lr * sign(c)
//   m = beta2 m + (1 - beta2) g
// sign(0) is 0: a weight whose gradient has always been zero only decays. A NaN in c reaches p.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct LionStepArgs {
  View master;
  ConstView gradient;
  View exp_avg;             // m
  View low_precision = {};  // optional
  ConstView scalars;
  double weight_decay = 0;
};

void LionStep(const LionStepArgs& args);

TESSERA_CPU_KERNEL(LionStep, LionStepArgs)

}  // namespace tessera::ops
