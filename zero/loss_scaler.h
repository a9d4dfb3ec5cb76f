// SPDX-License-Identifier: Apache-2.0
// The loss scale of fp16 training, with DeepSpeed's rule, and the count of skipped steps in every precision. Pure logic.
//
//   LossScaler scaler(config);
//   loss scaled by scaler.scale(); ... backward; gradients unscaled by the same scaler.scale(); only then:
//   const ScaleUpdate update = scaler.Update(overflow);   // overflow: the same on all ranks
//   if (overflow) std::cerr << update.ToString() << '\n';
//   if (update.ends_run()) ...
//
// Dynamic: an overflow takes one token of hysteresis, and halves the scale once there is one left; the scale doubles
// after a window of clean steps (one more the first time and after an overflow), which also returns the tokens.
// Fixed (a static scale, and scale 1 for bf16 and f32): overflows only skip, and too many in a row end the run.
#pragma once

#include <cstdint>
#include <string>

#include "zero/config.h"

namespace tessera::zero {

enum class ScaleEvent : uint8_t {
  kKept,            // a clean step
  kGrew,            // a clean step that completed a window
  kHysteresisUsed,  // overflow: skipped, the scale stays
  kShrunk,          // overflow: skipped, the scale was halved
  kAtMinimum,       // overflow at the minimum with no hysteresis left: skipped, and the run should end
  kSkipped,         // overflow at a fixed scale
  kTooManySkipped,  // as many of them in a row as the config allows: the run should end
};

struct ScaleUpdate {
  ScaleEvent event = ScaleEvent::kKept;
  double scale = 1;       // that backward used
  double next_scale = 1;  // of the next step
  bool has_scale = true;  // false: bf16 and f32, where the line does not mention one
  bool is_dynamic = true;
  int64_t hysteresis = 0;  // tokens left
  int64_t skipped = 0;     // steps so far
  int64_t skipped_in_a_row = 0;

  bool is_skipped() const { return event != ScaleEvent::kKept && event != ScaleEvent::kGrew; }
  bool ends_run() const { return event == ScaleEvent::kAtMinimum || event == ScaleEvent::kTooManySkipped; }
  std::string ToString() const;  // one line for the log; the caller knows the step and the parameter
};

// What a checkpoint keeps.
struct LossScalerState {
  double scale = 1;
  int64_t hysteresis = 1;
  int64_t last_overflow = -1;  // the iteration of it
  int64_t iteration = 0;
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;
};

class LossScaler {
 public:
  // Dynamic or fixed as the config says; 1 unless fp16 is enabled.
  explicit LossScaler(const Config& config);

  double scale() const { return state_.scale; }  // until Update that of the running step
  bool is_dynamic() const { return is_dynamic_; }
  const LossScalerState& state() const { return state_; }
  // Continues from a checkpoint. A fixed scale stays the config's, and hysteresis is at most the config's.
  void Restore(const LossScalerState& state);

  // Once at the end of each step.
  ScaleUpdate Update(bool overflow);

 private:
  ScaleEvent Overflow();
  ScaleEvent CleanStep();

  Fp16Config options_;
  int64_t max_skipped_steps_;
  bool is_dynamic_;
  LossScalerState state_;
};

}  // namespace tessera::zero
