// SPDX-License-Identifier: Apache-2.0
// What the optimizer kernels adam_step, sgd_step and lion_step share: their scalars, their operands, their contract.
//
// Operands are flat ranges of one length n: rank 1, contiguous, disjoint; n = 0 is legal.
//   master (n)         f32 or f64: the weights that are updated. In f32 training the parameter itself.
//   gradient (n)       f32, bf16, f16 or f64; it is multiplied by the gradient factor first.
//   states (n)         master's dtype, zero before the first step.
//   low_precision (n)  optional, bf16 or f16, needs an f32 master: set to the new master, rounded to nearest even.
//   scalars (kStepSlotCount)  f64, on the operands' device; begin_step fills them in. No kernel asks the host.
// A step whose skip slot is not 0 leaves every byte of all operands as it was.
//
// Every product that is added to something is an explicit fused multiply-add, every square root and division is IEEE's,
// and an element depends on its own operands only: the bits are the same on every instruction set and device, for any
// number of threads and any cut of the range.
#pragma once

#include <initializer_list>

#include "tensor/ops/check.h"
#include "tensor/tensor.h"

namespace tessera::ops {

enum StepSlot : int {
  kLr,
  kMomentum,  // Adam's and Lion's beta1, SGD's momentum
  kBeta2,
  kAppliedSteps,        // updates done, this one included; skipped ones do not count
  kLossScale,           // what the gradients must be divided by
  kGradNormBeforeClip,  // of the unscaled gradient; -1 when an element is not finite, NaN when it was not measured
  kClipFactor,          // 1 when nothing was clipped
  kGradientFactor,      // what kernels multiply gradients by: clip factor / loss scale
  kSkip,                // 0 or 1
  kMomentumCorrection,  // 1 / (1 - beta1^t), t = applied steps
  kSquareCorrection,    // 1 / sqrt(1 - beta2^t)
  kStepSlotCount
};

// Throws Error on the first operand that breaks the contract above.
void CheckFlatStep(const char* op, const ConstView& master, const ConstView& gradient,
                   std::initializer_list<Named> states, const ConstView& low_precision, const ConstView& scalars);

}  // namespace tessera::ops
