// SPDX-License-Identifier: Apache-2.0
// One step of stochastic gradient descent over a flat range (operands and promises: flat_step.h).
//
//   g = gradient * gradient_factor + weight_decay * p
//   b = momentum b + g,   g = b   (nesterov: g = g + momentum b)      only with a momentum_buffer
//   p = p - lr * g
// As in torch with dampening 0; a zero buffer makes its first step the same.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct SgdStepArgs {
  View master;
  ConstView gradient;
  View momentum_buffer = {};  // b; optional, without it there is no momentum
  View low_precision = {};    // optional
  ConstView scalars;
  double weight_decay = 0;
  bool nesterov = false;
};

void SgdStep(const SgdStepArgs& args);

TESSERA_CPU_KERNEL(SgdStep, SgdStepArgs)

}  // namespace tessera::ops
