// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <cmath>
#include <tuple>

#include "tensor/ops/adam_step.h"
#include "tensor/ops/lion_step.h"
#include "tensor/ops/sgd_step.h"

namespace tessera::optim {
namespace {

constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};
constexpr std::string_view kMomentumBuffer[] = {"momentum_buffer"};

// Adam -----------------------------------------------------------------------------------------------------------

// The owner is what the user called it: "Adam" usually is an AdamW.
void CheckAdam(std::string_view owner, const AdamOptions& options) {
  CheckInRange(owner, "lr", options.lr, 0, INFINITY);
  CheckInRange(owner, "betas[0]", options.beta1, 0, 1, true);
  CheckInRange(owner, "betas[1]", options.beta2, 0, 1, true);
  CheckInRange(owner, "eps", options.eps, 0, INFINITY);
  CheckInRange(owner, "weight_decay", options.weight_decay, 0, INFINITY);
}

class Adam final : public Optimizer {
 public:
  explicit Adam(const AdamOptions& options) : options_(options) { CheckAdam(name(), options); }

  std::string_view name() const override { return options_.adam_w_mode ? "AdamW" : "Adam"; }
  StartValues start_values() const override { return {options_.lr, options_.beta1, options_.beta2}; }
  bool has_betas() const override { return true; }
  std::span<const std::string_view> state_names() const override { return kMoments; }

 protected:
  void Apply(const FlatSpan& span, const StepScalars& scalars) const override {
    ops::AdamStep({.master = span.master,
                   .gradient = span.gradient,
                   .exp_avg = span.states[0],
                   .exp_avg_sq = span.states[1],
                   .low_precision = span.low_precision,
                   .scalars = scalars.Read(),
                   .eps = options_.eps,
                   .weight_decay = span.decay ? options_.weight_decay : 0,
                   .decoupled = options_.adam_w_mode,
                   .bias_correction = options_.bias_correction});
  }

 private:
  AdamOptions options_;
};

std::unique_ptr<Optimizer> CreateAdam(std::string_view owner, const Params& params) {
  AdamOptions options;
  ParamReader reader(owner, params);
  options.lr = reader.Number("lr", options.lr);
  std::tie(options.beta1, options.beta2) = reader.Pair("betas", {options.beta1, options.beta2});
  options.eps = reader.Number("eps", options.eps);
  options.weight_decay = reader.Number("weight_decay", options.weight_decay);
  options.bias_correction = reader.Flag("bias_correction", options.bias_correction);
  options.adam_w_mode = reader.Flag("adam_w_mode", options.adam_w_mode);
  reader.Flag("torch_adam", false);  // chooses between two implementations of the same formula: here is one
  if (reader.Flag("amsgrad", false)) {
    throw Error(Str(owner, ": amsgrad is true; this variant is not supported, leave it false"));
  }
  if (!reader.Flag("fp32_optimizer_states", true)) {
    throw Error(Str(owner, ": fp32_optimizer_states is false; states have the master's precision, leave it true"));
  }
  reader.RefuseUnknown();
  if (owner == "AdamW" && !options.adam_w_mode) {
    throw Error("AdamW: adam_w_mode is false; use the type Adam for L2 decay, or leave it true");
  }
  CheckAdam(owner, options);
  return Optimizer::Create(options);
}

// SGD ------------------------------------------------------------------------------------------------------------

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {
    CheckInRange(name(), "lr", options.lr, 0, INFINITY);
    CheckInRange(name(), "momentum", options.momentum, 0, 1);
    CheckInRange(name(), "weight_decay", options.weight_decay, 0, INFINITY);
    if (options.nesterov && options.momentum == 0) {
      throw Error("SGD: nesterov is true and momentum 0; nesterov needs a momentum in (0, 1]");
    }
  }

  std::string_view name() const override { return "SGD"; }
  StartValues start_values() const override { return {options_.lr, options_.momentum, 0}; }
  bool has_betas() const override { return false; }
  std::span<const std::string_view> state_names() const override {
    return std::span(kMomentumBuffer).first(options_.momentum == 0 ? 0 : 1);
  }

 protected:
  void Apply(const FlatSpan& span, const StepScalars& scalars) const override {
    ops::SgdStep({.master = span.master,
                  .gradient = span.gradient,
                  .momentum_buffer = span.states[0],
                  .low_precision = span.low_precision,
                  .scalars = scalars.Read(),
                  .weight_decay = span.decay ? options_.weight_decay : 0,
                  .nesterov = options_.nesterov});
  }

 private:
  SgdOptions options_;
};

std::unique_ptr<Optimizer> CreateSgd(const Params& params) {
  SgdOptions options;
  ParamReader reader("SGD", params);
  options.lr = reader.Number("lr", options.lr);
  options.momentum = reader.Number("momentum", options.momentum);
  options.weight_decay = reader.Number("weight_decay", options.weight_decay);
  options.nesterov = reader.Flag("nesterov", options.nesterov);
  const double dampening = reader.Number("dampening", 0);
  if (dampening != 0) throw Error(Str("SGD: dampening is ", dampening, "; only 0 is supported"));
  reader.RefuseUnknown();
  return Optimizer::Create(options);
}

// Lion -----------------------------------------------------------------------------------------------------------

class Lion final : public Optimizer {
 public:
  explicit Lion(const LionOptions& options) : options_(options) {
    CheckInRange(name(), "lr", options.lr, 0, INFINITY);
    CheckInRange(name(), "betas[0]", options.beta1, 0, 1, true);
    CheckInRange(name(), "betas[1]", options.beta2, 0, 1, true);
    CheckInRange(name(), "weight_decay", options.weight_decay, 0, INFINITY);
  }

  std::string_view name() const override { return "Lion"; }
  StartValues start_values() const override { return {options_.lr, options_.beta1, options_.beta2}; }
  bool has_betas() const override { return true; }
  std::span<const std::string_view> state_names() const override { return std::span(kMoments).first(1); }

 protected:
  void Apply(const FlatSpan& span, const StepScalars& scalars) const override {
    ops::LionStep({.master = span.master,
                   .gradient = span.gradient,
                   .exp_avg = span.states[0],
                   .low_precision = span.low_precision,
                   .scalars = scalars.Read(),
                   .weight_decay = span.decay ? options_.weight_decay : 0});
  }

 private:
  LionOptions options_;
};

std::unique_ptr<Optimizer> CreateLion(const Params& params) {
  LionOptions options;
  ParamReader reader("Lion", params);
  options.lr = reader.Number("lr", options.lr);
  std::tie(options.beta1, options.beta2) = reader.Pair("betas", {options.beta1, options.beta2});
  options.weight_decay = reader.Number("weight_decay", options.weight_decay);
  reader.RefuseUnknown();
  return Optimizer::Create(options);
}

}  // namespace

std::unique_ptr<Optimizer> Optimizer::Create(const AdamOptions& options) { return std::make_unique<Adam>(options); }
std::unique_ptr<Optimizer> Optimizer::Create(const SgdOptions& options) { return std::make_unique<Sgd>(options); }
std::unique_ptr<Optimizer> Optimizer::Create(const LionOptions& options) { return std::make_unique<Lion>(options); }

std::unique_ptr<Optimizer> Optimizer::Create(std::string_view type, const Params& params) {
  if (params.find("max_grad_norm") != params.end()) {
    throw Error(Str(type,
                    ": 'max_grad_norm' is not supported as an optimizer parameter, please switch to the parameter "
                    "'gradient_clipping'"));
  }
  if (EqualIgnoringCase(type, "AdamW")) return CreateAdam("AdamW", params);
  if (EqualIgnoringCase(type, "Adam")) return CreateAdam("Adam", params);
  if (EqualIgnoringCase(type, "SGD")) return CreateSgd(params);
  if (EqualIgnoringCase(type, "Lion")) return CreateLion(params);
  throw Error(Str("optimizer: type is \"", type, "\", expected Adam, AdamW, SGD or Lion"));
}

void Optimizer::Update(const FlatSpan& span, const StepScalars& scalars) const {
  if (!scalars.started()) throw Error(Str(name(), ": Update came before the first BeginStep"));
  for (int i = 0; i < kMaxStates; ++i) {
    const bool wanted = i < state_count();
    if (span.states[static_cast<size_t>(i)].present() == wanted) continue;
    throw Error(wanted ? Str(name(), ": state ", state_names()[static_cast<size_t>(i)], " is absent from the span")
                       : Str(name(), ": the span has a state too many, expected ", state_count()));
  }
  Apply(span, scalars);
}

}  // namespace tessera::optim
