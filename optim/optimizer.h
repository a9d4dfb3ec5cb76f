// SPDX-License-Identifier: Apache-2.0
// Optimizers over flat ranges. An optimizer holds its options and nothing else: states live with the ranges, the step
// counter and the learning rate in StepScalars, so that any part of the weights can be updated anywhere, in any order.
//
//   auto optimizer = Optimizer::Create("AdamW", {{"lr", 3e-4}, {"weight_decay", 0.1}});
//   StepScalars scalars(optimizer->start_values());
//   ... BeginStep(scalars, ...); optimizer->Update(span, scalars);      (the whole loop: clip.h)
//
// Names, parameters and defaults are DeepSpeed's: "Adam" means decoupled decay too unless adam_w_mode is false.
// States start as zeros. Creating an optimizer changes nothing.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "optim/flat_span.h"
#include "optim/params.h"
#include "optim/step_scalars.h"

namespace tessera::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool adam_w_mode = true;  // decoupled decay; false: L2, added to the gradient
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;  // 0: no state
  double weight_decay = 0;
  bool nesterov = false;
};

struct LionOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double weight_decay = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // type: "Adam", "AdamW", "SGD" or "Lion" in any case. Throws Error for another, and for a bad parameter.
  static std::unique_ptr<Optimizer> Create(std::string_view type, const Params& params = {});
  static std::unique_ptr<Optimizer> Create(const AdamOptions& options);
  static std::unique_ptr<Optimizer> Create(const SgdOptions& options);
  static std::unique_ptr<Optimizer> Create(const LionOptions& options);

  virtual std::string_view name() const = 0;
  virtual StartValues start_values() const = 0;
  virtual bool has_betas() const = 0;  // OneCycle moves momentum only where there are betas
  virtual std::span<const std::string_view> state_names() const = 0;
  int state_count() const { return static_cast<int>(state_names().size()); }

  // One step on one range; if the step is skipped no byte changes. After BeginStep, once for each range.
  void Update(const FlatSpan& span, const StepScalars& scalars) const;

 protected:
  virtual void Apply(const FlatSpan& span, const StepScalars& scalars) const = 0;
};

}  // namespace tessera::optim
