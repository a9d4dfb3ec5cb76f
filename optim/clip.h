// SPDX-License-Identifier: Apache-2.0
// Opening a step: the global gradient norm, clipping by it, and the test for overflow.
//
//   GradientNorm norm;
//   norm.Clear();
//   for (const FlatSpan& span : spans) norm.Add(span.gradient);        // one order, always the same
//   BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1.0});
//   for (const FlatSpan& span : spans) optimizer->Update(span, scalars);
//
// The value to log is `grad_norm_before_clip`, beside `clip_factor`: the norm itself never shrinks by clipping.
// Gradients are unscaled, tested, measured and clipped in that order; one factor does unscaling and clipping.
#pragma once

#include "optim/step_scalars.h"
#include "tensor/tensor.h"

namespace tessera::optim {

// Sums squares in f64, in the order written in tensor/ops/sum_squares.h. Between ranks, whoever shards adds the sums.
class GradientNorm {
 public:
  explicit GradientNorm(Device device = CurrentContext().device);
  void Clear();
  void Add(const ConstView& gradient);  // still multiplied by the loss scale
  const Tensor& sum_squares() const { return sum_; }

 private:
  Tensor sum_;        // (1) f64
  Tensor workspace_;  // grows to the longest gradient seen
};

struct StepOptions {
  // (R) f64 on the scalars' device, one per rank, added in order; undefined: nothing is measured, clipped or skipped.
  Tensor sum_squares = {};
  Tensor loss_weight = {};     // (R) f64 likewise; undefined: the gradients need no more than the loss scale taken out
  double expected_weight = 1;  // what backward divided the loss by
  double max_norm = 0;         // 0: no clipping; negative: an error
  bool skip_non_finite = true;
};

// Writes norm, clip factor and skip flag into `scalars`, and, unless the step is skipped, counts it and sets its
// learning rate from the schedule (formulas: tensor/ops/begin_step.h). Once before the updates of all ranges of a step.
void BeginStep(StepScalars& scalars, const StepOptions& options = {});

}  // namespace tessera::optim
