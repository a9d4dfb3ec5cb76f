// SPDX-License-Identifier: Apache-2.0
#include "optim/step_scalars.h"

#include <cmath>

#include "optim/params.h"
#include "tensor/ops/fill.h"

namespace tessera::optim {
namespace {

constexpr const char* kOwner = "step scalars";

}  // namespace

StepScalars::StepScalars(const StartValues& start, Device device)
    : block_(EmptyOn(device, {ops::kStepSlotCount}, DType::kF64, MemoryTag::kStates)) {
  ops::Fill({.out = block_.Write(), .value = 0});
  SetLr(start.lr);
  Set(ops::kMomentum, start.momentum);
  Set(ops::kBeta2, start.beta2);
  SetLossScale(1);
  Set(ops::kGradNormBeforeClip, std::nan(""));
  Set(ops::kClipFactor, 1);
  Set(ops::kGradientFactor, 1);
}

void StepScalars::SetLr(double lr) {
  CheckInRange(kOwner, "lr", lr, 0, INFINITY);
  Set(ops::kLr, lr);
}

void StepScalars::SetLossScale(double scale) {
  if (!std::isfinite(scale) || scale <= 0) {
    throw Error(Str(kOwner, ": loss scale is ", scale, ", expected a finite number > 0"));
  }
  Set(ops::kLossScale, scale);
}

void StepScalars::SetAppliedSteps(int64_t count) {
  CheckInRange(kOwner, "applied steps", static_cast<double>(count), 0, INFINITY);
  Set(ops::kAppliedSteps, static_cast<double>(count));
}

void StepScalars::SetSchedule(const Tensor& table, int64_t first_update) {
  if (table.defined() &&
      (table.dtype() != DType::kF64 || table.rank() != 2 || table.size(0) < 1 || table.size(1) != 3)) {
    throw Error(Str(kOwner, ": schedule is ", table, ", expected f64 (updates, 3) with updates >= 1"));
  }
  if (first_update < 1) throw Error(Str(kOwner, ": first update is ", first_update, ", expected >= 1"));
  schedule_ = table;
  schedule_first_update_ = first_update;
}

double StepScalars::Get(ops::StepSlot slot) const { return block_.At(slot); }

void StepScalars::Set(ops::StepSlot slot, double value) {
  ops::Fill({.out = block_.WithLayout(block_.layout().Narrow(0, slot, 1)).Write(), .value = value});
}

}  // namespace tessera::optim
