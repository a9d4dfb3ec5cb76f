// SPDX-License-Identifier: Apache-2.0
#include "zero/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "tensor/error.h"

namespace tessera::zero {

std::string ScaleUpdate::ToString() const {
  const std::string counts = is_dynamic ? Str(" (hysteresis ", hysteresis, ", skipped ", skipped, ")")
                                        : Str(" (skipped ", skipped, ", ", skipped_in_a_row, " in a row)");
  const std::string skip = "step skipped, gradients are not finite";
  switch (event) {
    case ScaleEvent::kKept:
      return (has_scale ? Str("loss scale ", next_scale) : "step applied") + counts;
    case ScaleEvent::kGrew:
      return Str("loss scale grows from ", scale, " to ", next_scale, counts);
    case ScaleEvent::kHysteresisUsed:
      return Str(skip, "; loss scale stays ", next_scale, counts);
    case ScaleEvent::kShrunk:
      return Str(skip, "; loss scale shrinks from ", scale, " to ", next_scale, counts);
    case ScaleEvent::kAtMinimum:
      return Str(skip, "; loss scale ", scale, " is the minimum and cannot shrink, the run ends", counts);
    case ScaleEvent::kSkipped:
      return Str(skip, has_scale ? Str("; loss scale is fixed at ", scale) : "", counts);
    case ScaleEvent::kTooManySkipped:
      return Str(skip, has_scale ? Str("; loss scale is fixed at ", scale) : "", "; too many in a row, the run ends",
                 counts);
  }
  return "?";
}

LossScaler::LossScaler(const Config& config)
    : options_(config.fp16),
      max_skipped_steps_(config.tessera.max_skipped_steps),
      is_dynamic_(config.is_dynamic_loss_scale()) {
  if (options_.loss_scale_window < 1 || options_.hysteresis < 1 || !(options_.min_loss_scale > 0)) {
    throw Error(Str("loss scale: loss_scale_window ", options_.loss_scale_window, ", hysteresis ", options_.hysteresis,
                    " and min_loss_scale ", options_.min_loss_scale, "; expected >= 1, >= 1 and > 0"));
  }
  if (!options_.enabled) options_.loss_scale = 1;
  state_.scale = is_dynamic_ ? std::ldexp(1.0, static_cast<int>(options_.initial_scale_power)) : options_.loss_scale;
  state_.hysteresis = options_.hysteresis;
}

void LossScaler::Restore(const LossScalerState& state) {
  const double scale = is_dynamic_ ? state.scale : state_.scale;
  state_ = state;
  state_.scale = scale;
  state_.hysteresis = std::clamp<int64_t>(state.hysteresis, 1, options_.hysteresis);
}

ScaleEvent LossScaler::Overflow() {
  ++state_.skipped;
  ++state_.skipped_in_a_row;
  state_.last_overflow = state_.iteration;
  if (!is_dynamic_) {
    return state_.skipped_in_a_row >= max_skipped_steps_ ? ScaleEvent::kTooManySkipped : ScaleEvent::kSkipped;
  }
  if (state_.hysteresis > 1) {
    --state_.hysteresis;
    return ScaleEvent::kHysteresisUsed;
  }
  if (state_.scale <= options_.min_loss_scale) return ScaleEvent::kAtMinimum;
  state_.scale = std::max(state_.scale / 2, options_.min_loss_scale);
  return ScaleEvent::kShrunk;
}

ScaleEvent LossScaler::CleanStep() {
  state_.skipped_in_a_row = 0;
  if (!is_dynamic_) return ScaleEvent::kKept;
  if (options_.consecutive_hysteresis) state_.hysteresis = options_.hysteresis;
  const int64_t clean_steps = state_.iteration - state_.last_overflow - 1;  // before this one
  if (clean_steps == 0 || clean_steps % options_.loss_scale_window != 0) return ScaleEvent::kKept;
  state_.scale *= 2;
  state_.hysteresis = options_.hysteresis;
  return ScaleEvent::kGrew;
}

ScaleUpdate LossScaler::Update(bool overflow) {
  ScaleUpdate update;
  update.scale = state_.scale;
  update.event = overflow ? Overflow() : CleanStep();
  ++state_.iteration;
  update.next_scale = state_.scale;
  update.has_scale = options_.enabled;
  update.is_dynamic = is_dynamic_;
  update.hysteresis = state_.hysteresis;
  update.skipped = state_.skipped;
  update.skipped_in_a_row = state_.skipped_in_a_row;
  return update;
}

}  // namespace tessera::zero
