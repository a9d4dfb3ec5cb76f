// SPDX-License-Identifier: Apache-2.0
// How far a run is, by steps, by time or by whichever ends first, and the learning rate that belongs to that point.
// With a limit in time alone, warm-up and decay fit the machine: a slow one takes fewer steps and still ends at the
// lowest rate.
#pragma once

#include <cstdint>

namespace tessera::examples {

struct Budget {
  int64_t max_steps = 0;  // 0: no limit; one of the two must be set
  double max_seconds = 0;

  // Of the run that is done, in [0, 1].
  double Fraction(int64_t steps, double elapsed_s) const;
};

// peak * warm-up * cosine. The cosine runs over the whole run, the warm-up multiplies its beginning.
struct CosineSchedule {
  double peak_lr = 1e-3;
  double final_ratio = 0.1;
  double warmup_fraction = 0.05;  // of the run
  int64_t warmup_steps = 0;       // more than 0: these instead

  // For the step after `steps` finished ones, at Budget's fraction.
  double Lr(int64_t steps, double fraction) const;
};

}  // namespace tessera::examples
