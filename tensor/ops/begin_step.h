// SPDX-License-Identifier: Apache-2.0
// Opens an optimizer step: from the sum of squares of the gradients, the loss scale s and max_norm it decides what to
// skip and what to clip, counts the step, and looks up the step's learning rate; all in device memory.
// The slots of `scalars` are listed in flat_step.h.
//
//   d = s, or s * (sum of loss_weight) / expected_weight: what the gradients must be divided by
//   norm = sqrt(sum of sum_squares) / d,   kappa = (norm + 1e-6) / max_norm
//   clip factor = kappa > 1 ? 1 / kappa : 1,   gradient factor = kappa > 1 ? 1 / (kappa d) : 1 / d
//   sum_squares not finite: norm = -1, and the step is skipped if `skip_non_finite`
//   loss weights that add up to 0: there was nothing to learn from; norm = 0, and the step is skipped
//   otherwise t = ++applied steps; lr, momentum and beta2 = row t - first_update of `schedule`; both bias corrections
//
// scalars (kStepSlotCount): f64. sum_squares (R): f64, any stride, optional: without it there is no norm, clipping or
// skipping. loss_weight (R): likewise. Both are one value per rank, and are added in that order.
// schedule (updates, 3): f64, contiguous, optional; columns lr, momentum, beta2, NaN = leave as it is. An update
// outside the table takes the nearest row: refill it in time.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct BeginStepArgs {
  View scalars;
  ConstView sum_squares = {};  // optional
  ConstView loss_weight = {};  // optional: the gradients are of a loss divided by expected_weight
  double expected_weight = 1;
  ConstView schedule = {};   // optional
  int64_t first_update = 1;  // of the schedule's first row; updates count from 1
  double max_norm = 0;       // 0: no clipping
  bool skip_non_finite = true;
};

void BeginStep(const BeginStepArgs& args);

TESSERA_CPU_KERNEL(BeginStep, BeginStepArgs)

}  // namespace tessera::ops
