// SPDX-License-Identifier: Apache-2.0
// The engine: a model, sharded and trained as a DeepSpeed config says.
//
//   auto engine = zero::Engine::Create(model, config, rank).value();
//   for (auto& batch : data) {
//     Loss loss = CrossEntropy(engine(batch.x), batch.y);
//     engine.Backward(loss);
//     engine.Step();                  // after every Backward; acts at the end of a window of accumulation
//   }
//   auto logits = engine.Evaluate(batch.x);
//
// All ranks make the same calls. There are no gradients to zero: the engine owns them.
//
// A loss weighs what it is over: a Loss its count of targets, a bare tensor 1. The step is the mean over all of that, on
// all micro-steps and ranks, however the samples were split.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "autograd/loss.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "zero/config.h"
#include "zero/rank.h"
#include "zero/tier.h"

namespace tessera::zero {

struct EngineOptions {
  uint64_t seed = 0;
  // What the losses of one sample weigh together, about: tokens of a sequence. It sets the size of gradients on their way
  // (a plain power of two away from the mean's is enough for 16 bits), never the result.
  double loss_weight_per_sample = 1;
  // In place of the config's optimizer section, which must then be absent.
  std::unique_ptr<optim::Optimizer> optimizer = nullptr;
  // One line for a person, on rank 0: skipped steps, notices, progress. Absent: stderr.
  std::function<void(const std::string&)> print = nullptr;

  // For tests: another tier, and slots that are filled with NaN when they are handed back.
  std::function<std::unique_ptr<Tier>(const TierContent&)> make_tier = nullptr;
  bool poison_slots = false;
};

// What happens to micro-steps that do not fill a window when the data ends.
enum class LastWindow : uint8_t {
  kUse,    // a step of what there is: the mean over fewer
  kDrop,   // forgotten
  kCarry,  // the next epoch goes on with them
};

template <class M>
class ModelEngine;

class Engine {
 protected:
  struct State;

 public:
  // Takes over the model. Fails for a config that does not fit this model or world size. Collective.
  template <class M>
  static absl::StatusOr<ModelEngine<M>> Create(M& model, const Config& config, Rank& rank, EngineOptions options = {});

  Engine(Engine&&) noexcept;
  ~Engine();

  // Calls `forward` as the forward of a micro-step, for models whose forward is not one call: engine.Forward([&] { return
  // model.Loss(model.Encode(x), y); }). Calling a ModelEngine does this.
  template <class F>
  auto Forward(F&& forward) {
    ForwardScope scope(*state_);
    auto result = forward();
    scope.Finish();
    return result;
  }
  // Calls `forward` without recording, as at inference. Collective: all ranks, at stage 3.
  template <class F>
  auto EvaluateWith(F&& forward) {
    const EvaluationScope scope(*state_);
    return forward();
  }

  // On the tape of the forward before it. Once for each Step.
  void Backward(const Loss& loss);
  void Backward(const Tensor& loss);
  void Step();
  // The loader's end: see LastWindow.
  void EndOfData(LastWindow policy = LastWindow::kUse);

  void Train() { SetTraining(true); }
  void Eval() { SetTraining(false); }

  // Of what Step has done. The getters wait for the device.
  int64_t global_steps() const;   // skipped ones too
  int64_t skipped_steps() const;  // not finite, or without a target
  int64_t micro_steps() const;
  int64_t global_samples() const;
  bool was_step_applied() const;
  double get_global_grad_norm() const;  // unscaled, before clipping; -1: not finite
  double clip_factor() const;
  double loss_scale() const;
  // Mean loss over the last window, on all ranks.
  double get_loss() const;
  double get_lr() const;                           // of the next update
  void SetLr(double lr);                           // without a scheduler in the config
  bool is_gradient_accumulation_boundary() const;  // the next Step acts

  Device device() const;
  int global_rank() const;
  int world_size() const;
  const Config& config() const;  // resolved
  int64_t train_batch_size() const { return config().train_batch_size; }
  int64_t train_micro_batch_size_per_gpu() const { return config().train_micro_batch_size_per_gpu; }
  int64_t gradient_accumulation_steps() const { return config().gradient_accumulation_steps; }

  // Elements gathered at stage 3: at most so far, and how often a unit was gathered.
  int64_t peak_gathered_numel() const;
  int64_t gather_count() const;
  // Elements of all units with their padding: what the laws of memory and traffic are in.
  int64_t padded_numel() const;

 protected:
  // Around one forward of the model; when it ends by an exception, what was recorded and gathered is dropped.
  class ForwardScope {
   public:
    explicit ForwardScope(State& state);
    ~ForwardScope();
    void Finish() { finished_ = true; }

   private:
    State& state_;
    std::chrono::steady_clock::time_point start_;
    bool finished_ = false;
  };
  // Around one evaluation: no tape, no dropout, random streams as they were.
  class EvaluationScope {
   public:
    explicit EvaluationScope(State& state);
    ~EvaluationScope();

   private:
    State& state_;
    NoGrad no_grad_;
    bool was_training_;
    Context context_;
  };

  static absl::StatusOr<Engine> Make(nn::Module& model, const Config& config, Rank& rank, EngineOptions options);
  explicit Engine(std::unique_ptr<State> state);

  void SetTraining(bool training);
  std::unique_ptr<State> state_;
};

// The engine of one model type: calling it is calling the model.
template <class M>
class ModelEngine final : public Engine {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    return Forward([&] { return (*model_)(std::forward<Args>(args)...); });
  }
  template <class... Args>
  auto Evaluate(Args&&... args) {
    return EvaluateWith([&] { return (*model_)(std::forward<Args>(args)...); });
  }
  M& model() const { return *model_; }

 private:
  friend class Engine;
  ModelEngine(Engine engine, M& model) : Engine(std::move(engine)), model_(&model) {}
  M* model_;
};

template <class M>
absl::StatusOr<ModelEngine<M>> Engine::Create(M& model, const Config& config, Rank& rank, EngineOptions options) {
  absl::StatusOr<Engine> engine = Make(model, config, rank, std::move(options));
  if (!engine.ok()) return engine.status();
  return ModelEngine<M>(*std::move(engine), model);
}

}  // namespace tessera::zero
