// SPDX-License-Identifier: Apache-2.0
// The scalars of an optimizer step, as one small f64 tensor on the device of the weights. The kernels read them there,
// so that skipping, clipping and the schedule never wait for the host. One block serves all ranges of a step: its
// counter is the only one, which is what keeps the bias correction of every range the same.
//
//   StepScalars scalars(optimizer->start_values());
//   scalars.SetSchedule(schedule->Table(1, 1000));   // or SetLr() before each step
//   BeginStep(scalars, {...});                        // see clip.h
#pragma once

#include <cstdint>

#include "tensor/context.h"
#include "tensor/ops/flat_step.h"
#include "tensor/tensor.h"

namespace tessera::optim {

// What an optimizer starts from; a schedule may move all three.
struct StartValues {
  double lr = 1e-3;
  double momentum = 0;  // Adam's and Lion's beta1
  double beta2 = 0;
};

class StepScalars {
 public:
  explicit StepScalars(const StartValues& start, Device device = CurrentContext().device);

  // Written by the host, between steps.
  void SetLr(double lr);
  void SetLossScale(double scale);      // what the gradients must be divided by
  void SetAppliedSteps(int64_t count);  // when a checkpoint is loaded
  // A table (updates, 3) of lr, momentum and beta2 on the device (LrSchedule::Table); row 0 belongs to `first_update`.
  // Applied updates move along it, skipped ones do not. An undefined tensor removes it.
  void SetSchedule(const Tensor& table, int64_t first_update = 1);

  // Read by the host: waits for the device.
  double lr() const { return Get(ops::kLr); }
  double momentum() const { return Get(ops::kMomentum); }
  double beta2() const { return Get(ops::kBeta2); }
  double loss_scale() const { return Get(ops::kLossScale); }
  int64_t applied_steps() const { return static_cast<int64_t>(Get(ops::kAppliedSteps)); }
  bool was_step_applied() const { return started_ && Get(ops::kSkip) == 0; }
  // Of the unscaled gradient and before clipping, as its name says; -1 when an element was not finite, NaN unmeasured.
  double grad_norm_before_clip() const { return Get(ops::kGradNormBeforeClip); }
  double clip_factor() const { return Get(ops::kClipFactor); }
  double gradient_factor() const { return Get(ops::kGradientFactor); }

  // For kernels, and for BeginStep.
  ConstView Read() const { return block_.Read(); }
  View Write() { return block_.Write(); }
  const Tensor& schedule() const { return schedule_; }
  int64_t schedule_first_update() const { return schedule_first_update_; }
  bool started() const { return started_; }
  void MarkStarted() { started_ = true; }

 private:
  double Get(ops::StepSlot slot) const;
  void Set(ops::StepSlot slot, double value);

  Tensor block_;  // (ops::kStepSlotCount)
  Tensor schedule_;
  int64_t schedule_first_update_ = 1;
  bool started_ = false;
};

}  // namespace tessera::optim
