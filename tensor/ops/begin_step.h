// SPDX-License-Identifier: Apache-2.0
// Opens an optimizer step: from the sum of squares of the gradients, the loss scale s and max_norm it decides what to
// skip and what to clip, counts the step, and looks up the step's learning rate; all in device memory.
// The slots of `scalars` are listed in flat_step.h.
//
//   norm = sqrt(sum_squares) / s,   kappa = (norm + 1e-6) / max_norm
//   clip factor = kappa > 1 ? 1 / kappa : 1,   gradient factor = kappa > 1 ? 1 / (kappa s) : 1 / s
//   sum_squares not finite: norm = -1, and the step is skipped if `skip_non_finite`
//   otherwise t = ++applied steps; lr, momentum and beta2 = row t - first_update of `schedule`; both bias corrections
//
// scalars (kStepSlotCount): f64. sum_squares (1): f64, optional: without it there is no norm, clipping or skipping.
// schedule (updates, 3): f64, contiguous, optional; columns lr, momentum, beta2, NaN = leave as it is. An update
// outside the table takes the nearest row: refill it in time.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct BeginStepArgs {
  View scalars;
  ConstView sum_squares = {};  // optional
  ConstView schedule = {};     // optional
  int64_t first_update = 1;    // of the schedule's first row; updates count from 1
  double max_norm = 0;         // 0: no clipping
  bool skip_non_finite = true;
};

void BeginStep(const BeginStepArgs& args);

TESSERA_CPU_KERNEL(BeginStep, BeginStepArgs)

}  // namespace tessera::ops
