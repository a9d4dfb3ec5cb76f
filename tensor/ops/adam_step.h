// SPDX-License-Identifier: Apache-2.0
// One step of Adam over a flat range (operands and promises: flat_step.h).
// D. Kingma, J. Ba, "Adam", ICLR 2015; I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
//
//   g = gradient * gradient_factor                      (+ weight_decay * p without `decoupled`)
//   m = beta1 m + (1 - beta1) g,    v = beta2 v + (1 - beta2) g^2
//   update = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)      (+ weight_decay * p with `decoupled`)
//   p = p - lr * update
// The two powers of betas come from the scalars; without `bias_correction` they are not used.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct AdamStepArgs {
  View master;
  ConstView gradient;
  View exp_avg, exp_avg_sq;  // m, v
  View low_precision = {};   // optional
  ConstView scalars;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;
  bool bias_correction = true;
};

void AdamStep(const AdamStepArgs& args);

TESSERA_CPU_KERNEL(AdamStep, AdamStepArgs)

}  // namespace tessera::ops
