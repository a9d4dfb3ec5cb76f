// SPDX-License-Identifier: Apache-2.0
// What a program may do between the calls of an engine: take branches, evaluate, hold leases, call the model twice, fail
// and go on.
#include <cstring>

#include "autograd/checkpoint.h"
#include "autograd/custom.h"
#include "nn/generate.h"
#include "nn/models/gpt.h"
#include "tests/support/golden_inputs.h"
#include "tests/zero/engine_harness.h"
#include "tests/zero/parity.h"

namespace tessera::testing {
namespace {

std::vector<Way> WaysWithAndWithoutOverlap(const std::vector<int>& ranks) {
  std::vector<Way> ways = AllWays(ranks);
  for (const Way& way : AllWays(ranks, true)) ways.push_back(way);
  return ways;
}

zero::Config MlpConfig(const Way& way, int accumulation = 1) {
  zero::Config config = PlainConfig(way, accumulation);
  UseAdam(&config, 0.01, 0.1);
  config.gradient_clipping = 0.5;
  return config;
}

void ExpectSameRun(const MlpRun& got, const MlpRun& expected) {
  ExpectSameBits(got.weights, expected.weights);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
}

constexpr double kDropout = 0.2;

// ---- branches and several uses ----

TEST(Branches, MayChangeFromStepToStep) {
  struct Branching : nn::Layer<Branching> {
    Branching() {
      for (nn::Module* layer : {&fc1, &fc2, &fc3}) layer->SetUnit();
    }
    Tensor Forward(const Tensor& x, bool through) {
      Tensor h = fc1(x);
      if (through) h = fc2(h);
      return Mean(Square(fc3(h)));
    }
    nn::Linear fc1{this, "fc1", 33, 33}, fc2{this, "fc2", 33, 33}, fc3{this, "fc3", 33, 33};
  };
  for (const Way& way : WaysWithAndWithoutOverlap({2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Branching model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      std::vector<int64_t> bytes;
      for (int step = 0; step < 6; ++step) {
        const std::vector<double> before = Values(model.fc2.weight), first = Values(model.fc1.weight);
        engine.Backward(engine(RandomTensor(Str("x", step, rank.index()), {2, 33}), step % 2 == 0));
        engine.Step();
        EXPECT_EQ(Values(model.fc2.weight) != before, step % 2 == 0) << step;  // zero gradient, not a stale one
        EXPECT_NE(Values(model.fc1.weight), first);
        bytes.push_back(rank.allocator().stats().bytes);
      }
      EXPECT_EQ(engine.global_steps(), 6);
      EXPECT_EQ(bytes[4], bytes[2]);
      EXPECT_EQ(bytes[5], bytes[3]);
      EXPECT_EQ(bytes[5], bytes[4]);
    });
  }
}

TEST(Branches, MayDifferBetweenRanksWhereNothingIsGathered) {
  struct TwoWays : nn::Layer<TwoWays> {
    TwoWays() {
      for (nn::Module* layer : {&shared, &left, &right}) layer->SetUnit();
    }
    Tensor Forward(const Tensor& x, bool go_left) { return Mean(Square(go_left ? left(shared(x)) : right(shared(x)))); }
    nn::Linear shared{this, "shared", 33, 33}, left{this, "left", 33, 33}, right{this, "right", 33, 33};
  };
  for (int accumulation : {1, 2}) {
    const auto train = [&](const Way& way, int parts) {
      std::vector<Tensor> weights;
      OnRanks(way, [&](zero::Rank& rank) {
        TwoWays model;
        auto engine = MakeEngine(model, PlainConfig(way, parts), rank);
        for (int step = 0; step < 3; ++step) {
          for (int part = 0; part < parts; ++part) {
            const int sample = part * way.ranks + rank.index();
            engine.Backward(engine(RandomTensor(Str("x", step, sample), {1, 33}), (sample + step) % 2 == 0));
            engine.Step();
          }
        }
        const std::vector<Tensor> mine = Weights(model);
        if (rank.is_main()) weights = mine;
      });
      return weights;
    };
    const std::vector<Tensor> expected = train({}, 2 * accumulation);
    for (const Way& way : WaysWithAndWithoutOverlap({2})) {
      if (way.stage < 3) ExpectNear(train(way, accumulation), expected, 1e-12);
    }
  }
}

struct Uses : nn::Layer<Uses> {
  nn::Parameter w1{this, "w1", {1}, nn::Init::Constant(1.5)}, w2{this, "w2", {1}, nn::Init::Constant(1.5)},
      w3{this, "w3", {1}, nn::Init::Constant(1.5)};
  Tensor Forward(int which) { return Sum(Mul(Vector({1}), which == 1 ? w1 : w2)); }
};

TEST(SeveralUses, ForwardsOfDifferentParametersShareOneBackward) {
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Uses model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      for (int step = 1; step <= 2; ++step) {
        const Tensor first = engine(1), second = engine(2);
        engine.Backward(Add(first, second));
        engine.Step();
        EXPECT_EQ(Values(model.w1)[0], 1.5 - step);
        EXPECT_EQ(Values(model.w2)[0], 1.5 - step);
        EXPECT_EQ(Values(model.w3)[0], 1.5);
      }
    });
  }
}

TEST(SeveralUses, ALayerCalledFourTimesGetsTheSumOfItsGradients) {
  struct Repeated : nn::Layer<Repeated> {
    nn::Parameter w{this, "w", {1}};
    bool recompute = false;
    Tensor Forward(const Tensor& x) {
      Tensor h = x;
      for (int i = 0; i < 4; ++i) {
        const auto add = [this](const Tensor& in) { return Add(in, w); };
        h = recompute ? Checkpoint(add, h) : add(h);
      }
      return Sum(h);
    }
  };
  for (const Way& way : AllWays()) {
    for (bool recompute : {false, true}) {
      OnRanks(way, [&](zero::Rank& rank) {
        Repeated model;
        model.recompute = recompute;
        auto engine = MakeEngine(model, PlainConfig(way), rank);
        engine.Backward(engine(Vector({0})));
        engine.Step();
        EXPECT_EQ(Values(model.w)[0], -4);
      });
    }
  }
}

TEST(SeveralUses, TwoCallsOfTheModelBeforeOneBackwardAddUp) {
  std::vector<Tensor> expected;
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    SCOPED_TRACE(way.Name());
    const MlpRun run = TrainMlp(way, MlpConfig(way), 3, [](const MlpMicroStep& micro) {
      const Tensor a = micro.engine(micro.x, micro.target), b = micro.engine(Neg(micro.x), micro.target);
      micro.engine.Backward(Add(a, b));
      micro.engine.Step();
    });
    if (expected.empty()) expected = run.weights;
    ExpectNear(run.weights, expected, 1e-12);
  }
}

// ---- the end of one rank's data ----

TEST(UnequalData, RanksThatAskStopTogether) {
  for (const Way& way : AllWays({2, 4})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(1);
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      const int batches = rank.index() == 0 ? 3 : 5;
      int used = 0;
      while (rank.AllAgree(used < batches)) {
        engine.Backward(engine(Vector({1})));
        engine.Step();
        ++used;
      }
      EXPECT_EQ(used, 3);
      EXPECT_EQ(engine.global_steps(), 3);
      EXPECT_EQ(Values(model.w)[0], -3);
    });
  }
}

// ---- errors that a program survives ----

TEST(Exceptions, InForwardLeaveNoTrace) {
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    SCOPED_TRACE(way.Name());
    const zero::Config config = MlpConfig(way, 3);
    const MlpRun expected = TrainMlp(
        way, config, 3, [](const MlpMicroStep& micro) { micro.Train(); }, kDropout);
    const MlpRun got = TrainMlp(
        way, config, 3,
        [](const MlpMicroStep& micro) {
          if (micro.step == 1) {
            micro.engine.model().between = [](const Tensor&) -> Tensor { throw Error("the disk is full"); };
            EXPECT_NE(ErrorOf([&] { micro.engine(micro.x, micro.target); }).find("the disk is full"),
                      std::string::npos);
            micro.engine.model().between = nullptr;
            // After the whole forward, and at the second of two calls.
            EXPECT_EQ(ErrorOf([&] {
                        micro.engine.Forward([&]() -> Tensor {
                          micro.engine.model()(micro.x, micro.target);
                          throw Error("later");
                        });
                      }),
                      "later");
          }
          micro.Train();
        },
        kDropout);
    ExpectSameRun(got, expected);
  }
}

TEST(Exceptions, InBackwardForgetTheWindowAndTrainingGoesOn) {
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    SCOPED_TRACE(way.Name());
    const zero::Config config = MlpConfig(way, 3);
    const MlpRun expected = TrainMlp(
        way, config, 4, [](const MlpMicroStep& micro) { micro.Train(); }, kDropout);
    const MlpRun got = TrainMlp(
        way, config, 4,
        [](const MlpMicroStep& micro) {
          // In front of a window, one that fails at its last micro-step.
          for (int part = 0; micro.step == 2 && micro.part == 0 && part < 3; ++part) {
            if (part == 2) {
              micro.engine.model().between = [](const Tensor& h) {
                return CustomFunction(
                    "broken", {h}, [](SavedValues&, std::span<const Tensor> in) { return in[0]; },
                    [](const SavedValues&, const Tensor&) -> std::vector<Tensor> { throw Error("no memory"); });
              };
              const Tensor loss = micro.engine(micro.x, micro.target);
              EXPECT_NE(ErrorOf([&] { micro.engine.Backward(loss); }).find("no memory"), std::string::npos);
              micro.engine.model().between = nullptr;
            } else {
              micro.engine.Backward(micro.engine(micro.x, micro.target));
              micro.engine.Step();
            }
          }
          micro.Train();
        },
        kDropout);
    ExpectSameRun(got, expected);
  }
}

TEST(Exceptions, InARecomputeForgetTheWindowAndTrainingGoesOn) {
  struct Checkpointed : nn::Layer<Checkpointed> {
    nn::ModuleList<nn::Linear> layers{this, "layers", 3, 33, 33};
    int calls_left = -1;  // of a layer, until one throws
    Tensor Forward(const Tensor& x) {
      Tensor h = x;
      for (nn::Linear& layer : layers) {
        h = Checkpoint(
            [this, &layer](const Tensor& in) {
              const Tensor out = Tanh(layer(in));
              if (calls_left-- == 0) throw Error("no memory");
              return out;
            },
            h);
      }
      return Mean(Square(h));
    }
  };
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    std::vector<Tensor> expected;
    for (int layer_that_fails : {-1, 2, 1, 0}) {
      OnRanks(way, [&](zero::Rank& rank) {
        Checkpointed model;
        auto engine = MakeEngine(model, MlpConfig(way), rank);
        for (int step = 0; step < 3; ++step) {
          const Tensor x = RandomTensor(Str("x", step, rank.index()), {2, 33});
          if (step == 1 && layer_that_fails >= 0) {
            model.calls_left = 3 + 2 - layer_that_fails;
            const Tensor loss = engine(x);
            EXPECT_NE(ErrorOf([&] { engine.Backward(loss); }).find("no memory"), std::string::npos);
          }
          engine.Backward(engine(x));
          engine.Step();
        }
        const std::vector<Tensor> got = Weights(model);
        if (!rank.is_main()) return;
        if (expected.empty()) expected = got;
        ExpectSameBits(got, expected);
      });
    }
  }
}

// ---- evaluation ----

TEST(Evaluation, BetweenForwardAndBackwardChangesNoBit) {
  for (const Way& way : WaysWithAndWithoutOverlap({1, 2})) {
    SCOPED_TRACE(way.Name());
    const zero::Config config = MlpConfig(way, 2);
    const MlpRun expected = TrainMlp(
        way, config, 3, [](const MlpMicroStep& micro) { micro.Train(); }, kDropout);
    const MlpRun got = TrainMlp(
        way, config, 3,
        [](const MlpMicroStep& micro) {
          micro.engine.Evaluate(micro.x, micro.target);
          const Tensor loss = micro.engine(micro.x, micro.target);
          const double value = micro.engine.Evaluate(micro.x, micro.target).Item();
          EXPECT_EQ(micro.engine.Evaluate(micro.x, micro.target).Item(), value);  // no dropout
          micro.engine.Backward(loss);
          micro.engine.Evaluate(micro.x, micro.target);
          micro.engine.Step();
        },
        kDropout);
    ExpectSameRun(got, expected);
  }
}

TEST(Evaluation, LeavesNothingGathered) {
  for (bool overlap : {false, true}) {
    const Way way{.stage = 3, .ranks = 2, .overlap = overlap};
    OnRanks(way, [&](zero::Rank& rank) {
      nn::Gpt model({.vocab_size = 67, .n_positions = 40, .n_embd = 32, .n_layer = 2, .n_head = 4});
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      const Tensor ids = Full({1, 8}, DType::kI64, 3);
      // What is still gathered need not be gathered again: a call after a call must gather as much as that one did.
      const auto gathers = [&](const auto& call) {
        const int64_t before = engine.gather_count();
        call();
        return engine.gather_count() - before;
      };
      const auto evaluate = [&] { engine.Evaluate(ids); };
      const int64_t first = gathers(evaluate);
      EXPECT_GE(first, 4);
      EXPECT_EQ(gathers(evaluate), first);
      const auto generate = [&] {
        engine.EvaluateWith([&] {
          return nn::Generate([&](const Tensor& prompt) { return model(prompt); }, std::vector<int64_t>{1, 2},
                              {.new_tokens = 3, .positions = 40});
        });
      };
      const int64_t generated = gathers(generate);
      EXPECT_EQ(gathers(generate), generated);
      EXPECT_EQ(gathers(evaluate), first);
      ErrorOf([&] { model.wte.weight.Data(); });
    });
  }
}

TEST(Evaluation, AfterAnExceptionTrainingModeIsBack) {
  OnRanks({.stage = 3, .ranks = 2}, [&](zero::Rank& rank) {
    Mlp model(kDropout);
    auto engine = MakeEngine(model, PlainConfig({.stage = 3, .ranks = 2}), rank);
    EXPECT_EQ(ErrorOf([&] { engine.EvaluateWith([]() -> int { throw Error("stop"); }); }), "stop");
    EXPECT_TRUE(model.training());
    EXPECT_FALSE(NoGrad::active());
    EXPECT_TRUE(model.drop.training());
  });
}

// ---- leases ----

TEST(Leases, HeldAcrossAStepAreAnErrorThatNamesTheParameterAndTheStepCanBeTakenAfterwards) {
  for (const Way& way : AllWays({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(3);
      auto engine = MakeEngine(model, PlainConfig(way, 2), rank);
      const Tensor one = Vector({1, 1, 1});
      {
        const nn::ParamLease lease = model.w.Gather();
        engine.Backward(engine(one));
        engine.Step();  // not the end of the window: nothing changes, so a lease does not matter
        engine.Backward(engine(one));
        const std::string error = ErrorOf([&] { engine.Step(); });
        EXPECT_NE(error.find("engine: Step"), std::string::npos) << error;
        EXPECT_NE(error.find("'w'"), std::string::npos) << error;
        EXPECT_EQ(lease.data().ToVector(), std::vector<double>(3, 0));
      }
      engine.Step();
      EXPECT_EQ(Values(model.w), std::vector<double>(3, -1));
      EXPECT_EQ(engine.micro_steps(), 2);
      for (int part = 0; part < 2; ++part) {
        engine.Backward(engine(one));
        engine.Step();
      }
      EXPECT_EQ(Values(model.w), std::vector<double>(3, -2));
    });
  }
}

TEST(Leases, OfSeveralTheOneThatIsStillHeldIsNamed) {
  for (const Way& way : AllWays({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Mlp model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      engine.Backward(engine(RandomTensor("x", {1, Mlp::kInputs}), RandomTensor("y", {1, Mlp::kOutputs})));
      const nn::ParamLease held = model.blocks[1].bias->Gather();
      { const nn::ParamLease other = model.blocks[1].weight.Gather(), another = model.up.weight.Gather(); }
      const std::string error = ErrorOf([&] { engine.Step(); });
      EXPECT_NE(error.find("parameter 'blocks.1.bias' is still gathered"), std::string::npos) << error;
    });
  }
}

// ---- dropout and determinism ----

TEST(Recompute, WithDropoutHasTheBitsOfTheStoredActivations) {
  for (int stage = 0; stage < 4; ++stage) {
    for (int ranks : {1, 2}) {
      for (int accumulation : {1, 3}) {
        ParitySetup setup{.stage = stage, .ranks = ranks, .accumulation = accumulation, .dtype = DType::kF32};
        setup.dropout = 0.1;
        setup.steps = 4;
        const ParityRun stored = TrainWithEngine(setup);
        setup.recompute = true;
        const ParityRun recomputed = TrainWithEngine(setup);
        ASSERT_EQ(stored.failure + recomputed.failure, "") << setup.Name();
        ExpectSameBits(recomputed.weights, stored.weights);
        for (size_t step = 0; step < stored.steps.size(); ++step) {
          EXPECT_EQ(recomputed.steps[step].loss, stored.steps[step].loss) << setup.Name();
          EXPECT_EQ(recomputed.steps[step].grad_norm, stored.steps[step].grad_norm) << setup.Name();
        }
      }
    }
  }
}

uint64_t HashOfTraining(const Way& way) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  const absl::Status status = zero::RunRanks({.world_size = way.ranks, .threads_per_rank = 3}, [&](zero::Rank& rank) {
    nn::Gpt model({.vocab_size = 67, .n_positions = 64, .n_embd = 32, .n_layer = 2, .n_head = 4});
    zero::Config config = PlainConfig(way);
    UseDType(&config, DType::kF32);
    UseAdam(&config, 0.01);
    auto engine = MakeEngine(model, config, rank);
    const Tensor ids = Full({8, 64}, DType::kI64, 3), targets = Full({8, 64}, DType::kI64, 5);
    for (int step = 0; step < 5; ++step) {
      engine.Backward(engine(ids, targets));
      engine.Step();
    }
    const std::vector<Tensor> weights = Weights(model);
    if (!rank.is_main()) return;
    for (const Tensor& weight : weights) {
      const auto* bytes = static_cast<const unsigned char*>(weight.Read().data);
      for (int64_t i = 0; i < weight.bytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
    }
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return hash;
}

TEST(Determinism, ATokenRepeatedInEveryPlaceGivesTheSameBitsInEveryRun) {
  for (const Way& way : AllWays({1, 2})) {
    const uint64_t first = HashOfTraining(way);
    EXPECT_EQ(HashOfTraining(way), first) << way.Name();
    EXPECT_EQ(HashOfTraining({.stage = way.stage, .ranks = way.ranks, .overlap = true}), first) << way.Name();
  }
}

}  // namespace
}  // namespace tessera::testing
