// SPDX-License-Identifier: Apache-2.0
// When an engine steps, and what it averages over: windows of accumulation, loss weights, the end of data, wrong calls.
#include <cmath>

#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tests/support/golden_inputs.h"
#include "tests/support/tiny_model.h"
#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

using Engine = zero::ModelEngine<Dot>;

void TrainOn(Engine& engine, const Tensor& gradient) {
  engine.Backward(engine(gradient));
  engine.Step();
}

TEST(Accumulation, GradientsOfAllMicroStepsAreAveraged) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(4);
      auto engine = MakeEngine(model, PlainConfig(way, 4), rank);
      for (int part = 0; part < 4; ++part) {
        EXPECT_EQ(engine.is_gradient_accumulation_boundary(), part == 3);
        TrainOn(engine, Vector({1, 1, 1, 1}));
      }
      EXPECT_EQ(engine.get_global_grad_norm(), 2);
      EXPECT_EQ(Values(model.w), (std::vector<double>{-1, -1, -1, -1}));
      EXPECT_EQ(engine.micro_steps(), 4);
      EXPECT_EQ(engine.global_steps(), 1);
      EXPECT_EQ(engine.global_samples(), 4 * way.ranks);
    });
  }
}

TEST(Accumulation, ClippingActsOnceOnTheAverage) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(2);
      zero::Config config = PlainConfig(way, 2);
      config.gradient_clipping = 1;
      auto engine = MakeEngine(model, config, rank);
      TrainOn(engine, Vector({6, 0}));
      EXPECT_EQ(Values(model.w), (std::vector<double>{0, 0}));
      TrainOn(engine, Vector({0, 8}));
      EXPECT_EQ(engine.get_global_grad_norm(), 5);
      const std::vector<double> w = Values(model.w);
      EXPECT_NEAR(w[0], -0.59999988, 5e-9);
      EXPECT_NEAR(w[1], -0.79999984, 5e-9);
    });
  }
}

TEST(Accumulation, WeightsMoveAtTheEndOfAWindowOnly) {
  for (const Way& way : AllWays({2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(3);
      auto engine = MakeEngine(model, PlainConfig(way, 3), rank);
      for (int micro = 1; micro <= 7; ++micro) {
        TrainOn(engine, Vector({3, 0, 0}));
        EXPECT_EQ(Values(model.w)[0], -3.0 * (micro / 3)) << micro;
      }
    });
  }
}

// ---- what a loss weighs ----

TEST(LossWeight, TheStepIsTheMeanOverAllTargetsNotOfMeans) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(1);
      auto engine = MakeEngine(model, PlainConfig(way, 2), rank);
      SetValues(model.w, {1});
      const double sums[] = {6, 4}, weights[] = {3, 1};  // means of 2 and 4
      for (int part = 0; part < 2; ++part) {
        engine.Backward(Loss{engine(Vector({sums[part]})), Full({}, DType::kF64, weights[part])});
        engine.Step();
      }
      EXPECT_EQ(engine.get_loss(), 2.5);
      EXPECT_EQ(engine.get_global_grad_norm(), 2.5);
      EXPECT_EQ(Values(model.w), std::vector<double>{-1.5});
    });
  }
}

TEST(LossWeight, BareLossesGiveTheMeanOfMeans) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(1);
      auto engine = MakeEngine(model, PlainConfig(way, 2), rank);
      SetValues(model.w, {1});
      TrainOn(engine, Vector({2}));
      TrainOn(engine, Vector({4}));
      EXPECT_EQ(engine.get_loss(), 3);
      EXPECT_EQ(Values(model.w), std::vector<double>{-2});
    });
  }
}

struct Split {
  int stage, ranks, accumulation;
  double weight_per_sample = kGoldenTokens;
};

struct TinyRun {
  std::vector<Tensor> weights;
  std::vector<double> losses, norms;
};

// Twelve sequences of the golden batch a step, in which every eleventh target or so is ignored.
TinyRun TrainTiny(const Split& split) {
  TinyRun run;
  const Way way{.stage = split.stage, .ranks = split.ranks};
  OnRanks(way, [&](zero::Rank& rank) {
    const TinyModel model = MakeTinyModel("llama", false);
    zero::Config config = PlainConfig(way, split.accumulation);
    config.gradient_clipping = 0.5;
    config.optimizer.params = {{"lr", 0.3}};
    config.train_micro_batch_size_per_gpu = 12 / split.ranks / split.accumulation;
    auto engine = MakeEngine(*model.module, config, rank, {.loss_weight_per_sample = split.weight_per_sample});
    FillGoldenWeights(*model.module);
    TinyRun mine;
    const int64_t micro = config.train_micro_batch_size_per_gpu;
    for (int step = 0; step < 3; ++step) {
      for (int part = 0; part < split.accumulation; ++part) {
        const GoldenBatch batch = MakeGoldenBatch(step, (part * split.ranks + rank.index()) * micro, micro);
        engine.Backward(engine.Forward([&] { return model.loss(batch.ids, batch.targets); }));
        engine.Step();
      }
      mine.losses.push_back(engine.get_loss());
      mine.norms.push_back(engine.get_global_grad_norm());
    }
    mine.weights = Weights(*model.module);
    if (rank.is_main()) run = std::move(mine);
  });
  return run;
}

TEST(LossWeight, AnySplitOfTheSameSamplesGivesTheSameStep) {
  const TinyRun expected = TrainTiny({0, 1, 1});
  for (const Split& split : {Split{1, 1, 2},
                             {2, 1, 3},
                             {3, 2, 1},
                             {0, 2, 3},
                             {1, 2, 3},
                             {2, 2, 3},
                             {3, 2, 3},
                             {1, 3, 1},
                             {2, 3, 2},
                             {3, 4, 1},
                             {0, 4, 3},
                             {2, 4, 3},
                             {3, 4, 3, 1000},
                             {0, 2, 2, 0.01}}) {
    SCOPED_TRACE(Str("stage ", split.stage, ", ", split.ranks, " ranks, ", split.accumulation, " micro-steps"));
    const TinyRun run = TrainTiny(split);
    ExpectNear(run.weights, expected.weights, 1e-12);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(run.losses[step], expected.losses[step], 1e-12);
      EXPECT_NEAR(run.norms[step], expected.norms[step], 1e-12);
    }
  }
}

// ---- nothing to learn from ----

TEST(IgnoredTargets, AStepWithoutTargetsMovesNothingAndIsReported) {
  for (const Way& way : AllWays({1, 2})) {
    std::vector<std::string> lines;
    OnRanks(way, [&](zero::Rank& rank) {
      const TinyModel model = MakeTinyModel("gpt", false), undisturbed = MakeTinyModel("gpt", false);
      zero::Config config = PlainConfig(way, 2);
      UseAdam(&config, 0.01, 0.1);
      UseWarmup(&config, 0.01, 10);
      auto engine = MakeEngine(*model.module, config, rank, ListeningOptions(&lines));
      auto other = MakeEngine(*undisturbed.module, config, rank);
      const GoldenBatch batch = MakeGoldenBatch(0, rank.index(), 1);
      const Tensor ignored = Full(batch.targets.shape(), DType::kI64, -100);
      const auto train = [&](auto& which, const TinyModel& trained, const Tensor& targets) {
        which.Backward(which.Forward([&] { return trained.loss(batch.ids, targets); }));
        which.Step();
      };
      const std::vector<Tensor> before = Weights(*model.module);
      for (int part = 0; part < 2; ++part) train(engine, model, ignored);
      EXPECT_EQ(engine.get_loss(), 0);
      EXPECT_EQ(engine.get_global_grad_norm(), 0);
      EXPECT_FALSE(engine.was_step_applied());
      EXPECT_EQ(engine.skipped_steps(), 1);
      EXPECT_EQ(engine.global_steps(), 1);
      EXPECT_EQ(engine.get_lr(), other.get_lr());
      ExpectSameBits(Weights(*model.module), before);
      for (int micro = 0; micro < 4; ++micro) {  // the counters did not move either
        train(engine, model, batch.targets);
        train(other, undisturbed, batch.targets);
      }
      EXPECT_EQ(engine.get_lr(), other.get_lr());
      ExpectSameBits(Weights(*model.module), Weights(*undisturbed.module));
    });
    EXPECT_EQ(lines, std::vector<std::string>{"step 1 skipped: there were no target tokens"}) << way.Name();
  }
}

TEST(IgnoredTargets, ARankWithoutTargetsChangesNothingForTheOthers) {
  const auto train = [](const Way& way, int parts) {
    std::vector<Tensor> weights;
    OnRanks(way, [&](zero::Rank& rank) {
      const TinyModel model = MakeTinyModel("llama", false);
      auto engine = MakeEngine(*model.module, PlainConfig(way, parts), rank);
      for (int step = 0; step < 2; ++step) {
        for (int part = 0; part < parts; ++part) {
          const GoldenBatch batch = MakeGoldenBatch(step, 0, 1);
          const bool counts = rank.is_main() && part == 0;
          const Tensor targets = counts ? batch.targets : Full(batch.targets.shape(), DType::kI64, -100);
          engine.Backward(engine.Forward([&] { return model.loss(batch.ids, targets); }));
          engine.Step();
        }
        EXPECT_TRUE(engine.was_step_applied());
      }
      const std::vector<Tensor> mine = Weights(*model.module);
      if (rank.is_main()) weights = mine;
    });
    return weights;
  };
  const std::vector<Tensor> expected = train({.stage = 0, .ranks = 1}, 1);
  for (const Way& way : AllWays({1, 2})) {
    for (int parts : {1, 2}) ExpectNear(train(way, parts), expected, 1e-12);
  }
}

// ---- the end of data ----

std::vector<double> AfterFiveMicroSteps(const Way& way, zero::LastWindow policy, int more) {
  std::vector<double> w;
  OnRanks(way, [&](zero::Rank& rank) {
    Dot model(1);
    auto engine = MakeEngine(model, PlainConfig(way, 2), rank);
    const Tensor one = Vector({1});
    for (int micro = 0; micro < 5; ++micro) TrainOn(engine, one);
    engine.EndOfData(policy);
    const double at_end = Values(model.w)[0];
    for (int micro = 0; micro < more; ++micro) TrainOn(engine, one);
    const double later = Values(model.w)[0];
    if (rank.is_main()) w = {at_end, later};
  });
  return w;
}

TEST(EndOfData, UseTakesAStepOfTheMeanOfWhatThereIs) {
  for (const Way& way : AllWays()) {
    EXPECT_EQ(AfterFiveMicroSteps(way, zero::LastWindow::kUse, 2), (std::vector<double>{-3, -4})) << way.Name();
  }
}

TEST(EndOfData, DropForgetsTheOpenWindow) {
  for (const Way& way : AllWays()) {
    EXPECT_EQ(AfterFiveMicroSteps(way, zero::LastWindow::kDrop, 1), (std::vector<double>{-2, -2})) << way.Name();
    EXPECT_EQ(AfterFiveMicroSteps(way, zero::LastWindow::kDrop, 2), (std::vector<double>{-2, -3})) << way.Name();
  }
}

TEST(EndOfData, CarryGoesOnWithTheOpenWindow) {
  for (const Way& way : AllWays()) {
    EXPECT_EQ(AfterFiveMicroSteps(way, zero::LastWindow::kCarry, 1), (std::vector<double>{-2, -3})) << way.Name();
  }
}

TEST(EndOfData, AfterWholeWindowsNothingHappens) {
  OnRanks({.stage = 2, .ranks = 2}, [&](zero::Rank& rank) {
    Dot model(1);
    auto engine = MakeEngine(model, PlainConfig({.stage = 2, .ranks = 2}, 2), rank);
    for (int micro = 0; micro < 2; ++micro) TrainOn(engine, Vector({1}));
    engine.EndOfData();
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(Values(model.w)[0], -1);
  });
}

// ---- calls out of turn ----

void ExpectErrorWith(const std::string& part, const std::function<void()>& f) {
  const std::string error = ErrorOf(f);
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(Cadence, CallsOutOfTurnAreErrorsThatSayWhatToDoAndChangeNothing) {
  for (const Way& way : AllWays({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(1);
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      const Tensor one = Vector({1});
      ExpectErrorWith("Step without a Backward", [&] { engine.Step(); });
      ExpectErrorWith("Backward without a forward", [&] { engine.Backward(one); });
      Tensor loss = engine(one);
      engine.Backward(loss);
      ExpectErrorWith("Backward again before Step; call Step", [&] { engine.Backward(loss); });
      ExpectErrorWith("forward after Backward; call Step", [&] { engine(one); });
      ExpectErrorWith("EndOfData after Backward; call Step", [&] { engine.EndOfData(); });
      engine.Step();
      ExpectErrorWith("Step without a Backward", [&] { engine.Step(); });
      ExpectErrorWith("Backward without a forward", [&] { engine.Backward(loss); });
      EXPECT_EQ(Values(model.w)[0], -1);
      TrainOn(engine, one);
      EXPECT_EQ(Values(model.w)[0], -2);
      EXPECT_EQ(engine.global_steps(), 2);
    });
  }
}

TEST(Cadence, ALossOfManyElementsIsAnError) {
  OnRanks({}, [&](zero::Rank& rank) {
    struct Scaled : nn::Layer<Scaled> {
      nn::Parameter w{this, "w", {2}};
      Tensor Forward(const Tensor& x) { return Mul(x, w); }
    } model;
    auto engine = MakeEngine(model, PlainConfig({}), rank);
    const Tensor y = engine(Vector({1, 1}));
    ExpectErrorWith("take its Mean()", [&] { engine.Backward(y); });
    engine.Backward(Sum(y));
    engine.Step();
    EXPECT_EQ(Values(model.w), (std::vector<double>{-1, -1}));
  });
}

TEST(Cadence, InEvaluationNothingIsRecorded) {
  OnRanks({}, [&](zero::Rank& rank) {
    Dot model(1);
    auto engine = MakeEngine(model, PlainConfig({}), rank);
    engine.Eval();
    const Tensor loss = engine(Vector({1}));
    ExpectErrorWith("training mode", [&] { engine.Backward(loss); });
    engine.Train();
    TrainOn(engine, Vector({1}));
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

TEST(Cadence, TheLearningRateHasOneMaster) {
  OnRanks({}, [&](zero::Rank& rank) {
    Dot model(1), scheduled(1);
    auto engine = MakeEngine(model, PlainConfig({}), rank);
    engine.SetLr(0.25);
    EXPECT_EQ(engine.get_lr(), 0.25);
    TrainOn(engine, Vector({1}));
    EXPECT_EQ(Values(model.w)[0], -0.25);
    zero::Config config = PlainConfig({});
    UseWarmup(&config, 1, 10);
    auto other = MakeEngine(scheduled, config, rank);
    ExpectErrorWith("scheduler", [&] { other.SetLr(0.25); });
  });
}

TEST(Create, RefusesAConfigThatDoesNotFitAndSaysWhy) {
  OnRanks({.ranks = 2}, [&](zero::Rank& rank) {
    Dot model(1);
    const auto refusal = [&](const std::function<void(zero::Config*, zero::EngineOptions*)>& change) {
      zero::Config config = PlainConfig({});
      zero::EngineOptions options;
      change(&config, &options);
      const auto engine = zero::Engine::Create(model, config, rank, std::move(options));
      return engine.ok() ? std::string("accepted") : std::string(engine.status().message());
    };
    const auto adam = [] { return optim::Optimizer::Create(optim::AdamOptions{}); };
    using Config = zero::Config;
    using Options = zero::EngineOptions;
    EXPECT_EQ(refusal([](Config*, Options*) {}), "accepted");
    EXPECT_NE(refusal([](Config* config, Options*) { config->train_batch_size = 3; }).find("3 is not"),
              std::string::npos);
    EXPECT_NE(refusal([](Config* config, Options*) { config->optimizer = {}; }).find("no optimizer was given"),
              std::string::npos);
    EXPECT_NE(refusal([&](Config*, Options* options) { options->optimizer = adam(); }).find("keep one"),
              std::string::npos);
    EXPECT_NE(refusal([](Config* config, Options*) { config->optimizer.type = "Adagrad"; }).find("Adagrad"),
              std::string::npos);
    EXPECT_NE(refusal([](Config* config, Options*) { config->scheduler.type = "Weekly"; }).find("Weekly"),
              std::string::npos);
    EXPECT_NE(refusal([](Config*, Options* options) { options->loss_weight_per_sample = 0; }).find("is 0"),
              std::string::npos);
    auto engine = MakeEngine(model, PlainConfig({}), rank);  // the model is free again
    TrainOn(engine, Vector({1}));
  });
}

// ---- against the plain loop ----

TEST(PlainLoop, AnEngineOfOneRankHasItsBitsAtEveryStage) {
  constexpr int64_t kRows = 4;
  const optim::AdamOptions adam{.lr = 3e-3, .weight_decay = 0.1};
  for (const char* name : {"gpt", "llama"}) {
    const auto batch = [](int step) {  // no target is ignored
      GoldenBatch golden = MakeGoldenBatch(step, 0, kRows);
      std::vector<int64_t> targets;
      for (double id : golden.ids.ToVector()) targets.push_back((5 * static_cast<int64_t>(id) + 7) % kGoldenVocab);
      golden.targets = Tensor::From(targets, golden.ids.shape());
      return golden;
    };
    std::vector<Tensor> expected;
    std::vector<double> losses;
    {
      const TinyModel model = MakeTinyModel(name, false);
      nn::ResidentManager params(*model.module, {.seed = 5});
      optim::PlainOptimizer optimizer(optim::Optimizer::Create(adam), params.ranges());
      for (int step = 0; step < 4; ++step) {
        Tape tape;
        const Loss loss = model.loss(batch(step).ids, batch(step).targets);
        losses.push_back(loss.Mean());
        Backward(loss);
        optimizer.Step(params.FinishGradients());
      }
      expected = Weights(*model.module);
    }
    for (const Way& way : AllWays({1})) {
      OnRanks(way, [&](zero::Rank& rank) {
        const TinyModel model = MakeTinyModel(name, false);
        zero::Config config = PlainConfig(way);
        UseDType(&config, DType::kF32);
        config.optimizer = {};
        config.train_micro_batch_size_per_gpu = kRows;
        zero::EngineOptions options{.seed = 5, .loss_weight_per_sample = kGoldenTokens};
        options.optimizer = optim::Optimizer::Create(adam);
        auto engine = MakeEngine(*model.module, config, rank, std::move(options));
        for (int step = 0; step < 4; ++step) {
          engine.Backward(engine.Forward([&] { return model.loss(batch(step).ids, batch(step).targets); }));
          engine.Step();
          EXPECT_NEAR(engine.get_loss(), losses[static_cast<size_t>(step)], 1e-6);
        }
        ExpectSameBits(Weights(*model.module), expected);
      });
    }
  }
}

}  // namespace
}  // namespace tessera::testing
