// SPDX-License-Identifier: Apache-2.0
// Running engines in tests: the ways that must agree, ranks with a trace of the way they run, and two small models.
//
//   for (const Way& way : AllWays()) {
//     OnRanks(way, [&](zero::Rank& rank) {
//       Dot model(2);
//       auto engine = MakeEngine(model, PlainConfig(way), rank);
//       ...
//       EXPECT_EQ(Values(model.w), (std::vector<double>{-3, -4}));   // all ranks: reading gathers
//     });
//   }
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/elementwise.h"
#include "autograd/reduce.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "tensor/function_ref.h"
#include "tests/support/op_case.h"
#include "zero/engine.h"

namespace tessera::testing {

struct Way {
  int stage = 0;
  int ranks = 1;
  bool overlap = false;  // communication on a thread of its own
  std::string Name() const { return Str("stage ", stage, ", ", ranks, " ranks", overlap ? ", overlapping" : ""); }
};
// Stages 0 to 3, each with all of these numbers of ranks.
std::vector<Way> AllWays(const std::vector<int>& ranks = {1, 2, 4}, bool overlap = false);

// f64, SGD with a learning rate of 1, no clipping, one sample per rank and micro-step, small buckets, nothing persists.
zero::Config PlainConfig(const Way& way, int accumulation = 1);
// AdamW in place of SGD.
void UseAdam(zero::Config* config, double lr, double weight_decay = 0);
void UseDType(zero::Config* config, DType dtype);
// Linear warm-up from a tenth of `lr`.
void UseWarmup(zero::Config* config, double lr, int steps);

// Runs `body` on every rank. The first expects success, the second returns the status's text.
void OnRanks(const Way& way, FunctionRef<void(zero::Rank&)> body);
std::string FailureOf(const Way& way, FunctionRef<void(zero::Rank&)> body, double comm_timeout_s = 60);

template <class M>
zero::ModelEngine<M> MakeEngine(M& model, const zero::Config& config, zero::Rank& rank,
                                zero::EngineOptions options = {}) {
  options.poison_slots = true;
  if (!options.print) options.print = [](const std::string&) {};
  auto engine = zero::Engine::Create(model, config, rank, std::move(options));
  if (!engine.ok()) throw Error(std::string(engine.status().message()));
  return *std::move(engine);
}

// Collective, under an engine.
std::vector<double> Values(nn::Parameter& parameter);
void SetValues(nn::Parameter& parameter, const std::vector<double>& values);
std::vector<Tensor> Weights(const nn::Module& module);  // whole copies

Tensor Vector(const std::vector<double>& values, DType dtype = DType::kF64);
void ExpectSameBits(const std::vector<Tensor>& got, const std::vector<Tensor>& expected);
void ExpectNear(const std::vector<Tensor>& got, const std::vector<Tensor>& expected, double tolerance);

// The tier of the device, and a look at it.
class SpyTier final : public zero::Tier {
 public:
  explicit SpyTier(const zero::TierContent& content_in) : content(content_in), inner_(content_in) {}
  zero::TierRange Fetch(int unit, int64_t begin, int64_t numel) override {
    ++fetches;
    return inner_.Fetch(unit, begin, numel);
  }
  void Store(int unit, int64_t begin, const zero::TierRange& range) override { inner_.Store(unit, begin, range); }
  const zero::TierContent content;
  int fetches = 0;

 private:
  zero::DeviceTier inner_;
};
// Options whose engine adds the lines it prints about steps to `lines`.
zero::EngineOptions ListeningOptions(std::vector<std::string>* lines);
// Options whose engine's tier is `*spy` while that engine lives.
zero::EngineOptions SpyingOptions(SpyTier** spy);

// A vector that is called with its gradient: the loss is the inner product of both.
struct Dot : nn::Layer<Dot> {
  explicit Dot(int64_t numel) : w(this, "w", {numel}) {}
  Tensor Forward(const Tensor& gradient) { return Sum(Mul(gradient, w)); }
  nn::Parameter w;
};

// Four units of odd sizes. `between`, when there is one, is applied to what goes from the first block to the second.
struct Mlp : nn::Layer<Mlp> {
  static constexpr int64_t kInputs = 31, kOutputs = 30;
  explicit Mlp(double dropout = 0) : drop(this, "drop", dropout) {}
  Tensor Forward(const Tensor& x) {
    Tensor h = drop(Tanh(up(x)));
    for (int64_t i = 0; i < blocks.size(); ++i) {
      if (i == 1 && between) h = between(h);
      h = drop(Tanh(blocks[i](h)));
    }
    return down(h);
  }
  Tensor Forward(const Tensor& x, const Tensor& target) { return Mean(Square(Sub(Forward(x), target))); }

  nn::Dropout drop;
  nn::Linear up{this, "up", kInputs, 35};
  nn::ModuleList<nn::Linear> blocks{this, "blocks", 2, 35, 35};
  nn::Linear down{this, "down", 35, kOutputs};
  std::function<Tensor(const Tensor&)> between;
};
inline constexpr int64_t kMlpBatch = 12;  // samples of a step, however they are split

struct MlpMicroStep {
  zero::ModelEngine<Mlp>& engine;
  zero::Rank& rank;
  int step = 0, part = 0;
  Tensor x, target;
  void Train() const {
    engine.Backward(engine(x, target));
    engine.Step();
  }
};
struct MlpRun {
  std::vector<Tensor> weights;  // at the end
  std::vector<double> losses, norms, scales;
  int64_t skipped_steps = 0;
};
// Trains the Mlp as `config` says (its batch size is set here) and returns what rank 0 saw.
MlpRun TrainMlp(
    const Way& way, zero::Config config, int steps,
    FunctionRef<void(const MlpMicroStep&)> train = [](const MlpMicroStep& micro) { micro.Train(); },
    double dropout = 0);

}  // namespace tessera::testing
