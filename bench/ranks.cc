// SPDX-License-Identifier: Apache-2.0
// Tokens per second of a GPT under the engine, by stage and number of thread ranks, beside the plain loop without an engine
// on as many threads in all.
//
//   build/bench/ranks [--preset=tiny|small] [--batch=16] [--seq=64] [--ranks=2] [--steps=40] [--rounds=5]
//
// The variants run in turn, in every round, with the same global batch; a figure is the median over rounds of a round's
// median step. tiny: the trainer's small model; small: 8 blocks of 512, 25 M parameters.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "bench/timing.h"
#include "nn/models/gpt.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tensor/context.h"
#include "tensor/rng.h"
#include "tensor/thread_pool.h"
#include "zero/engine.h"

namespace tessera::bench {
namespace {

struct Setting {
  nn::GptConfig model;
  int64_t batch, tokens, steps;
};

// Rows [first, first + rows) of a step's global batch.
std::pair<Tensor, Tensor> Batch(const Setting& setting, int64_t step, int64_t first, int64_t rows) {
  const RngKey key = RngKey(9).With(static_cast<uint64_t>(step));
  const auto count = static_cast<size_t>(rows * setting.tokens), skip = static_cast<size_t>(first * setting.tokens);
  std::vector<int64_t> ids(count), targets(count);
  for (size_t i = 0; i < count; ++i) {
    ids[i] = key.Bits(2 * (skip + i)) % setting.model.vocab_size;
    targets[i] = key.Bits(2 * (skip + i) + 1) % setting.model.vocab_size;
  }
  return {Tensor::From(ids, {rows, setting.tokens}), Tensor::From(targets, {rows, setting.tokens})};
}

constexpr optim::AdamOptions kAdam{.lr = 1e-4, .weight_decay = 0.01};

double PlainStepSeconds(const Setting& setting) {
  nn::Gpt model(setting.model);
  nn::ResidentManager params(model, {.dtype = DType::kF32});
  optim::PlainOptimizer optimizer(optim::Optimizer::Create(kAdam), params.ranges());
  std::vector<double> times;
  for (int64_t step = 0; step < setting.steps + 3; ++step) {
    const auto [x, y] = Batch(setting, step, 0, setting.batch);
    const double start = Now();
    {
      Tape tape;
      Backward(model(x, y));
    }
    optimizer.Step(params.FinishGradients(), {.max_grad_norm = 1.0});
    if (step >= 3) times.push_back(Now() - start);
  }
  return Median(times);
}

double EngineStepSeconds(const Setting& setting, int ranks, int stage, bool overlap) {
  zero::Config config;
  config.train_batch_size = setting.batch;
  config.gradient_accumulation_steps = 1;
  config.param_dtype = DType::kF32;
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 0;
  config.zero.overlap_comm = overlap;
  double result = 0;
  const absl::Status status = zero::RunRanks({.world_size = ranks}, [&](zero::Rank& rank) {
    nn::Gpt model(setting.model);
    zero::EngineOptions options{.loss_weight_per_sample = static_cast<double>(setting.tokens)};
    options.optimizer = optim::Optimizer::Create(kAdam);
    auto engine = zero::Engine::Create(model, config, rank, std::move(options)).value();
    const int64_t rows = setting.batch / ranks;
    std::vector<double> times;
    for (int64_t step = 0; step < setting.steps + 3; ++step) {
      const auto [x, y] = Batch(setting, step, rank.index() * rows, rows);
      const double start = Now();
      const Loss loss = engine(x, y);
      engine.Backward(loss);
      engine.Step();
      if (step >= 3) times.push_back(Now() - start);
    }
    if (rank.is_main()) result = Median(times);
  });
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  return result;
}

int Main(int argc, char** argv) {
  const std::string preset = Flag(argc, argv, "--preset", "tiny");
  Setting setting{.model = nn::GptConfig::Tiny(),
                  .batch = std::atoll(Flag(argc, argv, "--batch", "16").c_str()),
                  .tokens = std::atoll(Flag(argc, argv, "--seq", "64").c_str()),
                  .steps = std::atoll(Flag(argc, argv, "--steps", "40").c_str())};
  if (preset == "small") {
    setting.model = {.vocab_size = 256, .n_positions = 256, .n_embd = 512, .n_layer = 8, .n_head = 8};
  }
  const int ranks = std::atoi(Flag(argc, argv, "--ranks", "2").c_str());
  const int rounds = std::atoi(Flag(argc, argv, "--rounds", "5").c_str());

  struct Variant {
    std::string name;
    int ranks, stage;
    bool overlap;
    std::vector<double> seconds;
  };
  std::vector<Variant> variants = {{"plain loop", 0, 0, false, {}}, {"engine, 1 rank, stage 0", 1, 0, false, {}}};
  for (int stage = 0; stage < 4; ++stage) {
    variants.push_back({Str("engine, ", ranks, " ranks, stage ", stage), ranks, stage, false, {}});
  }
  variants.push_back({Str("engine, ", ranks, " ranks, stage 3, overlap_comm"), ranks, 3, true, {}});
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants) {
      variant.seconds.push_back(variant.ranks == 0
                                    ? PlainStepSeconds(setting)
                                    : EngineStepSeconds(setting, variant.ranks, variant.stage, variant.overlap));
    }
  }
  const double step_tokens = static_cast<double>(setting.batch * setting.tokens);
  std::printf("%s, f32, %lld x %lld tokens a step, %d threads in all, %lld steps x %d rounds\n", preset.c_str(),
              static_cast<long long>(setting.batch), static_cast<long long>(setting.tokens), NumThreads(),
              static_cast<long long>(setting.steps), rounds);
  std::printf("%-40s %10s %10s %14s %16s\n", "", "ms a step", "tokens/s", "of plain loop", "of stage 0, same N");
  const double plain = Median(variants[0].seconds), stage_zero = Median(variants[2].seconds);
  for (const Variant& variant : variants) {
    const double seconds = Median(variant.seconds);
    std::printf("%-40s %10.2f %10.0f %14.3f", variant.name.c_str(), 1e3 * seconds, step_tokens / seconds,
                plain / seconds);
    if (variant.ranks == ranks) std::printf(" %16.3f", stage_zero / seconds);
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
