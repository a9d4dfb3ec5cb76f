// SPDX-License-Identifier: Apache-2.0
#include "examples/common/budget.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::examples {

double Budget::Fraction(int64_t steps, double elapsed_s) const {
  double fraction = 0;
  if (max_steps > 0) fraction = static_cast<double>(steps) / static_cast<double>(max_steps);
  if (max_seconds > 0) fraction = std::max(fraction, elapsed_s / max_seconds);
  return std::clamp(fraction, 0.0, 1.0);
}

double CosineSchedule::Lr(int64_t steps, double fraction) const {
  double warmup = 1;
  if (warmup_steps > 0) {
    warmup = static_cast<double>(steps + 1) / static_cast<double>(warmup_steps);
  } else if (warmup_fraction > 0) {
    warmup = std::max(fraction / warmup_fraction, 0.01);  // a first step of rate 0 would be a lost one
  }
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * fraction));
  return peak_lr * std::min(warmup, 1.0) * (final_ratio + (1 - final_ratio) * cosine);
}

}  // namespace tessera::examples
