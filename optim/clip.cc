// SPDX-License-Identifier: Apache-2.0
#include "optim/clip.h"

#include "tensor/ops/begin_step.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/sum_squares.h"

namespace tessera::optim {

GradientNorm::GradientNorm(Device device) : sum_(EmptyOn(device, {1}, DType::kF64, MemoryTag::kWorkspace)) { Clear(); }

void GradientNorm::Clear() { ops::Fill({.out = sum_.Write(), .value = 0}); }

void GradientNorm::Add(const ConstView& gradient) {
  const int64_t needed = ops::SumSquaresWorkspaceNumel(gradient.numel());
  if (!workspace_.defined() || workspace_.numel() < needed) {
    workspace_ = EmptyOn(sum_.device(), {needed}, DType::kF64, MemoryTag::kWorkspace);
  }
  ops::SumSquares({.x = gradient, .out = sum_.Write(), .workspace = workspace_.Write(), .accumulate = true});
}

void BeginStep(StepScalars& scalars, const StepOptions& options) {
  ops::BeginStep({.scalars = scalars.Write(),
                  .sum_squares = options.sum_squares.defined() ? options.sum_squares.Read() : ConstView{},
                  .loss_weight = options.loss_weight.defined() ? options.loss_weight.Read() : ConstView{},
                  .expected_weight = options.expected_weight,
                  .schedule = scalars.schedule().defined() ? scalars.schedule().Read() : ConstView{},
                  .first_update = scalars.schedule_first_update(),
                  .max_norm = options.max_norm,
                  .skip_non_finite = options.skip_non_finite});
  scalars.MarkStarted();
}

}  // namespace tessera::optim
