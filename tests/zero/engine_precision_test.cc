// SPDX-License-Identifier: Apache-2.0
// Loss scales, skipped steps and what is said of them, the norm, clipping, and the precision that gradients add up in.
#include <cmath>
#include <limits>

#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

void TrainOn(zero::ModelEngine<Dot>& engine, const Tensor& gradient) {
  engine.Backward(engine(gradient));
  engine.Step();
}

// Three vectors, each called with its own gradient.
struct Three : nn::Layer<Three> {
  nn::Parameter a{this, "a", {3}, nn::Init::Ones()}, b{this, "b", {3}, nn::Init::Ones()},
      c{this, "c", {3}, nn::Init::Ones()};
  Tensor Forward(const Tensor& ga, const Tensor& gb, const Tensor& gc) {
    return Sum(Add(Add(Mul(ga, a), Mul(gb, b)), Mul(gc, c)));
  }
};

// ---- loss scale ----

TEST(LossScale, AFixedScaleStaysAndAnOverflowSkipsAndIsReported) {
  std::vector<Tensor> of_stage_zero;
  for (int ranks : {1, 2, 4}) {
    for (int stage = 0; stage < 4; ++stage) {
      SCOPED_TRACE(Str("stage ", stage, ", ", ranks, " ranks"));
      const Way way{.stage = stage, .ranks = ranks};
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF16);
      config.fp16.loss_scale = 128;
      config.optimizer.params = {{"lr", 0.5}};
      const MlpRun run = TrainMlp(way, config, 6, [](const MlpMicroStep& micro) {
        const bool overflows = micro.step == 2 && micro.rank.index() == micro.rank.world_size() - 1;
        const Tensor x = overflows ? Full(micro.x.shape(), DType::kF16, kInf) : micro.x;
        micro.engine.Backward(micro.engine(x, micro.target));
        micro.engine.Step();
        EXPECT_EQ(micro.engine.was_step_applied(), micro.step != 2);
      });
      EXPECT_EQ(run.scales, std::vector<double>(6, 128.0));
      EXPECT_EQ(run.skipped_steps, 1);
      EXPECT_EQ(run.norms[2], -1);
      if (stage == 0) {
        of_stage_zero = run.weights;
        continue;
      }
      for (size_t i = 0; i < run.weights.size(); ++i) {
        const std::vector<double> got = run.weights[i].ToVector(), expected = of_stage_zero[i].ToVector();
        for (size_t k = 0; k < got.size(); ++k) {
          const double ulp = std::ldexp(1.0, std::max(std::ilogb(expected[k]), -14) - 10);
          ASSERT_LE(std::abs(got[k] - expected[k]), ulp) << "parameter " << i << ", element " << k;
        }
      }
    }
  }
}

TEST(LossScale, AnOverflowAtTheMinimumEndsTheRunAndNamesTheFirstParameter) {
  for (const Way& way : AllWays({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Three model;
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF16);
      config.fp16.initial_scale_power = 2;
      config.fp16.hysteresis = 1;
      auto engine = MakeEngine(model, config, rank);
      const std::vector<Tensor> before = Weights(model);
      const Tensor one = Vector({1, 1, 1}, DType::kF16), bad = Vector({1, 1, kInf}, DType::kF16);
      const auto step = [&] {
        engine.Backward(engine(one, bad, bad));
        engine.Step();
      };
      EXPECT_EQ(engine.loss_scale(), 4);
      step();
      EXPECT_EQ(engine.loss_scale(), 2);
      step();
      EXPECT_EQ(engine.loss_scale(), 1);
      const std::string error = ErrorOf(step);
      EXPECT_NE(error.find("step 3"), std::string::npos) << error;
      EXPECT_NE(error.find("the gradient of 'b' is Inf"), std::string::npos) << error;
      EXPECT_NE(error.find("the minimum"), std::string::npos) << error;
      EXPECT_EQ(engine.skipped_steps(), 3);
      ExpectSameBits(Weights(model), before);
    });
  }
}

TEST(LossScale, GradientsAreUnscaledBeforeTheyAreMeasuredAndClipped) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(2);
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF16);
      config.fp16.loss_scale = 1024;
      config.gradient_clipping = 1;
      auto engine = MakeEngine(model, config, rank);
      TrainOn(engine, Vector({3, 4}, DType::kF16));
      EXPECT_NEAR(engine.get_global_grad_norm(), 5, 1e-3);
      const std::vector<double> w = Values(model.w);
      EXPECT_NEAR(w[0], -0.6, 1e-3);
      EXPECT_NEAR(w[1], -0.8, 1e-3);
    });
  }
}

TEST(LossScale, AStepAtWhichTheScaleGrowsIsUnscaledByTheOldOne) {
  OnRanks({}, [&](zero::Rank& rank) {
    Dot model(1);
    zero::Config config = PlainConfig({});
    UseDType(&config, DType::kF16);
    config.fp16.initial_scale_power = 4;
    config.fp16.loss_scale_window = 2;
    std::vector<std::string> lines;
    auto engine = MakeEngine(model, config, rank, ListeningOptions(&lines));
    for (int step = 1; step <= 6; ++step) {
      TrainOn(engine, Vector({1}, DType::kF16));
      EXPECT_EQ(Values(model.w)[0], -step);
      EXPECT_EQ(engine.get_global_grad_norm(), 1);
    }
    EXPECT_EQ(engine.loss_scale(), 64);  // after steps 3 and 5
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].find("step 3: loss scale grows from 16 to 32"), 0u) << lines[0];
  });
}

// ---- skipped steps ----

TEST(SkippedStep, ANaNOnOneRankIsReportedOnceUnderBf16WithStepParameterAndKind) {
  for (const Way& way : AllWays({2, 4})) {
    std::vector<std::string> lines;
    OnRanks(way, [&](zero::Rank& rank) {
      Three model;
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kBF16);
      UseWarmup(&config, 0.1, 100);
      config.steps_per_print = 8;
      auto engine = MakeEngine(model, config, rank, ListeningOptions(&lines));
      const Tensor one = Vector({1, 1, 1}, DType::kBF16), bad = Vector({1, kNan, 1}, DType::kBF16);
      for (int step = 1; step <= 8; ++step) {
        const double lr = engine.get_lr();
        const std::vector<Tensor> before = Weights(model);
        engine.Backward(engine(one, step == 5 && rank.index() == 1 ? bad : one, one));
        engine.Step();
        EXPECT_EQ(engine.was_step_applied(), step != 5);
        if (step != 5) continue;
        EXPECT_EQ(engine.get_lr(), lr);
        EXPECT_EQ(engine.get_global_grad_norm(), -1);
        ExpectSameBits(Weights(model), before);
      }
      EXPECT_EQ(engine.skipped_steps(), 1);
      EXPECT_EQ(engine.global_steps(), 8);
    });
    ASSERT_EQ(lines.size(), 2u) << way.Name();
    EXPECT_EQ(lines[0],
              "step 5: step skipped, gradients are not finite (skipped 1, 1 in a row); the gradient of 'b' is NaN");
    EXPECT_EQ(lines[1].find("step=8, skipped=1, lr=["), 0u) << lines[1];
  }
}

TEST(SkippedStep, TooManyInARowAtAFixedScaleEndTheRun) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Way way{.stage = 1, .ranks = 2};
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(1);
      zero::Config config = PlainConfig(way);
      UseDType(&config, dtype);
      config.fp16.loss_scale = 8;
      auto engine = MakeEngine(model, config, rank);
      const Tensor bad = Vector({kInf}, dtype), good = Vector({1}, dtype);
      for (int step = 0; step < 19; ++step) TrainOn(engine, bad);
      TrainOn(engine, good);  // ends the row
      for (int step = 0; step < 19; ++step) TrainOn(engine, bad);
      const std::string error = ErrorOf([&] { TrainOn(engine, bad); });
      EXPECT_NE(error.find("step 40"), std::string::npos) << error;
      EXPECT_NE(error.find("'w' is Inf"), std::string::npos) << error;
      EXPECT_NE(error.find("20 in a row"), std::string::npos) << error;
      EXPECT_EQ(engine.skipped_steps(), 39);
      EXPECT_EQ(Values(model.w)[0], -1);
    });
  }
}

TEST(SkippedStep, WithoutTheCheckForOverflowBf16TakesTheStep) {
  OnRanks({}, [&](zero::Rank& rank) {
    Dot model(1);
    zero::Config config = PlainConfig({});
    UseDType(&config, DType::kBF16);
    config.bf16.check_grad_overflow = false;
    auto engine = MakeEngine(model, config, rank);
    TrainOn(engine, Vector({kInf}, DType::kBF16));
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_EQ(Values(model.w)[0], -kInf);
  });
}

TEST(SkippedStep, TheScheduleAndTheOptimizersCounterCountAppliedStepsOnly) {
  const auto train = [](const Way& way, int overflows, int steps, double* lr) {
    std::vector<Tensor> weights;
    OnRanks(way, [&](zero::Rank& rank) {
      Three model;
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF16);
      config.fp16.initial_scale_power = 8;
      config.fp16.hysteresis = 1;
      UseAdam(&config, 0.01, 0.1);
      UseWarmup(&config, 0.1, 10);
      auto engine = MakeEngine(model, config, rank);
      const Tensor bad = Vector({kInf, 0, 0}, DType::kF16);
      for (int step = 0; step < steps; ++step) {
        const double g = 0.5 + 0.25 * std::max(0, step - overflows);
        const Tensor good = Vector({g, -g, 0.5}, DType::kF16);
        engine.Backward(engine(good, step < overflows ? bad : good, good));
        engine.Step();
        EXPECT_EQ(engine.was_step_applied(), step >= overflows);
      }
      EXPECT_EQ(engine.skipped_steps(), overflows);
      const std::vector<Tensor> mine = Weights(model);
      if (rank.is_main()) weights = mine;
      if (rank.is_main()) *lr = engine.get_lr();
    });
    return weights;
  };
  for (const Way& way : AllWays({1, 2})) {
    double lr = 0, clean_lr = 0;
    const std::vector<Tensor> weights = train(way, 2, 5, &lr);
    ExpectSameBits(weights, train(way, 0, 3, &clean_lr));
    EXPECT_EQ(lr, clean_lr);
    EXPECT_GT(lr, 0);
  }
}

// ---- norm and clipping ----

TEST(GradientNorm, EveryRankReportsTheNormOfTheWholeGradient) {
  for (const Way& way : AllWays({2, 4})) {
    for (double clipping : {0.0, 2.5}) {
      OnRanks(way, [&](zero::Rank& rank) {
        Dot model(100);  // 3 lies in the first rank's part, 4 in the last one's
        zero::Config config = PlainConfig(way);
        config.gradient_clipping = clipping;
        auto engine = MakeEngine(model, config, rank);
        std::vector<double> gradient(100);
        if (rank.index() == 0) gradient[0] = 3 * way.ranks;
        if (rank.index() == 1) gradient[99] = 4 * way.ranks;
        TrainOn(engine, Vector(gradient));
        EXPECT_EQ(engine.get_global_grad_norm(), 5);
        const std::vector<double> w = Values(model.w);
        EXPECT_NEAR(w[0], clipping == 0 ? -3 : -1.4999997, 5e-8);
        EXPECT_NEAR(w[99], clipping == 0 ? -4 : -1.9999996, 5e-8);
        EXPECT_EQ(w[50], 0);
      });
    }
  }
}

std::vector<std::string> LinesOfOneStep(std::string_view clipping) {
  std::vector<std::string> lines;
  OnRanks({}, [&](zero::Rank& rank) {
    Dot model(2);
    const auto config = zero::Config::FromJson(Str("{\"train_batch_size\": 1, \"steps_per_print\": 1, ", clipping,
                                                   "\"data_types\": {\"param_dtype\": \"fp64\"}, ",
                                                   "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}}"));
    if (!config.ok()) throw Error(std::string(config.status().message()));
    zero::EngineOptions options;
    options.print = [&](const std::string& line) { lines.push_back(line); };
    auto engine = MakeEngine(model, *config, rank, std::move(options));
    TrainOn(engine, Vector({3, 4}));
    lines.push_back(Str(engine.clip_factor()));
  });
  return lines;
}

TEST(Clipping, TheLineNamesTheNormBeforeItAndTheFactor) {
  const std::vector<std::string> lines = LinesOfOneStep("\"gradient_clipping\": 1, ");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("grad_norm_before_clip=5,"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("clip_factor=0.19999996"), std::string::npos) << lines[0];
}

TEST(Clipping, OfZeroIsNone) { EXPECT_EQ(LinesOfOneStep("\"gradient_clipping\": 0, ").back(), "1"); }

TEST(Clipping, ItsDefaultIsSaidAndUsed) {
  const std::vector<std::string> lines = LinesOfOneStep("");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("gradient_clipping is absent"), std::string::npos) << lines[0];
  EXPECT_EQ(lines.back().find("0.19999996"), 0u) << lines.back();
}

TEST(Clipping, NegativeIsRefused) {
  const auto config = zero::Config::FromJson("{\"train_batch_size\": 1, \"gradient_clipping\": -1}");
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.status().message().find("gradient_clipping"), absl::string_view::npos) << config.status().message();
}

// ---- what gradients add up in ----

// The sum of `count` micro-steps' gradients: the first is 1, the others `other`.
double SumOfGradients(const Way& way, const zero::Config& base, int count, double other) {
  double sum = 0;
  OnRanks(way, [&](zero::Rank& rank) {
    Dot model(1);
    zero::Config config = base;
    config.gradient_accumulation_steps = count;
    config.optimizer.params = {{"lr", count}};
    SpyTier* tier = nullptr;
    auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
    const DType dtype = engine.config().parameter_dtype();
    for (int part = 0; part < count; ++part) TrainOn(engine, Vector({part == 0 ? 1 : other}, dtype));
    const double w = Values(model.w)[0];
    if (!rank.is_main()) return;
    sum = IsLowPrecision(dtype) ? -tier->Fetch(0, 0, 1).master.At(0) : -w;
  });
  return sum;
}

TEST(AccumulationDType, SmallGradientsAreNotLostInBf16) {
  for (const Way& way : AllWays()) {
    zero::Config config = PlainConfig(way);
    UseDType(&config, DType::kBF16);
    EXPECT_EQ(SumOfGradients(way, config, 256, 0x1p-9), 1.498046875) << way.Name();
    EXPECT_EQ(SumOfGradients(way, config, 512, 1), 512) << way.Name();
  }
}

TEST(AccumulationDType, SmallGradientsAreNotLostBehindABf16Wire) {
  for (const Way& way : AllWays({1, 2})) {
    zero::Config config = PlainConfig(way);
    UseDType(&config, DType::kF32);
    config.communication_data_type = DType::kBF16;
    EXPECT_EQ(SumOfGradients(way, config, 256, 0x1p-9), 1.498046875) << way.Name();
  }
}

TEST(AccumulationDType, ABf16AccumulatorIsLossyAndOnlyOnRequest) {
  const Way way{.stage = 1, .ranks = 2};
  zero::Config config = PlainConfig(way);
  UseDType(&config, DType::kBF16);
  config.grad_accum_dtype = DType::kBF16;
  EXPECT_EQ(SumOfGradients(way, config, 256, 0x1p-9), 1);
  EXPECT_EQ(SumOfGradients(way, config, 512, 1), 256);
}

}  // namespace
}  // namespace tessera::testing
