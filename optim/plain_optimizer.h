// SPDX-License-Identifier: Apache-2.0
// An optimizer over whole parameters, for a loop without an engine: it owns the states, and fp32 masters where the
// parameters are of 16 bits.
//
//   optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{.lr = 3e-4}), params.ranges());
//   ... Backward(loss) ...
//   optimizer.Step(params.FinishGradients(), {.max_grad_norm = 1.0});
#pragma once

#include <memory>
#include <vector>

#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tensor/param_range.h"

namespace tessera::optim {

struct PlainStepOptions {
  double max_grad_norm = 0;  // 0: no clipping
  double loss_weight = 1;    // the gradients are of a sum: they are divided by this
};

class PlainOptimizer {
 public:
  // The ranges may be given at each step in other memory, but in this order and with these sizes and dtypes.
  PlainOptimizer(std::unique_ptr<Optimizer> optimizer, const std::vector<ParamRange>& ranges);

  // One update. A gradient that is not finite leaves everything as it was (see was_step_applied).
  void Step(const std::vector<ParamRange>& ranges, const PlainStepOptions& options = {});

  StepScalars& scalars() { return scalars_; }
  void SetLr(double lr) { scalars_.SetLr(lr); }
  bool was_step_applied() const { return scalars_.was_step_applied(); }
  double grad_norm() const { return scalars_.grad_norm_before_clip(); }
  int64_t state_bytes() const;  // moments and masters

 private:
  struct RangeState {
    Tensor master;  // undefined when the parameter is its own master
    std::vector<Tensor> states;
  };

  std::unique_ptr<Optimizer> optimizer_;
  StepScalars scalars_;
  GradientNorm norm_;
  std::vector<RangeState> ranges_;
};

}  // namespace tessera::optim
