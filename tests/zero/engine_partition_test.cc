// SPDX-License-Identifier: Apache-2.0
// Parameters of every kind under an engine: empty, tiny, odd, tied, frozen, persistent; read and edited by the program.
#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "autograd/linear.h"
#include "nn/resident_manager.h"
#include "tests/support/golden_inputs.h"
#include "tests/support/tiny_model.h"
#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

std::vector<Tensor> KeepOfMain(zero::Rank& rank, const nn::Module& module) {
  std::vector<Tensor> weights = Weights(module);
  return rank.is_main() ? weights : std::vector<Tensor>();
}

// ---- first values ----

TEST(FirstValues, AreThoseOfTheResidentManagerAtEveryStageAndNumberOfRanks) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<Tensor> expected;
    {
      const TinyModel model = MakeTinyModel("gpt", false);
      const nn::ResidentManager params(*model.module, {.dtype = dtype, .seed = 7});
      expected = Weights(*model.module);
    }
    for (const Way& way : AllWays({1, 2, 3, 4})) {
      OnRanks(way, [&](zero::Rank& rank) {
        const TinyModel model = MakeTinyModel("gpt", false);
        zero::Config config = PlainConfig(way);
        UseDType(&config, dtype);
        config.zero.param_persistence_threshold = way.ranks == 2 ? 64 : 0;
        auto engine = MakeEngine(*model.module, config, rank, {.seed = 7});
        ExpectSameBits(Weights(*model.module), expected);
      });
    }
  }
}

TEST(FirstValues, MakingAnEngineTakesNoStep) {
  struct One : nn::Layer<One> {
    nn::Parameter w{this, "w", {1}, nn::Init::Ones()};
    Tensor Forward(const Tensor& gradient) { return Sum(Mul(gradient, w)); }
  };
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      One model;
      zero::Config config = PlainConfig(way);
      UseAdam(&config, 0.1, 0.5);
      SpyTier* tier = nullptr;
      auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
      EXPECT_EQ(Values(model.w), std::vector<double>{1});
      EXPECT_EQ(engine.global_steps(), 0);
      const int64_t held = tier->content.unit_numel[0];
      for (const Tensor& state : tier->Fetch(0, 0, held).states) {
        if (!state.defined()) continue;
        for (double value : state.ToVector()) EXPECT_EQ(value, 0);
      }
      engine.Backward(engine(Vector({0.5})));
      engine.Step();
      EXPECT_NEAR(Values(model.w)[0], 0.850000002, 1e-9);  // the first step's bias correction
    });
  }
}

// ---- odd, tiny and empty ----

TEST(OddSizes, EveryStageAndNumberOfRanksTakesTheSameSteps) {
  for (int accumulation : {1, 3}) {
    std::vector<Tensor> expected;
    for (const Way& way : AllWays({1, 2, 3, 4})) {
      SCOPED_TRACE(way.Name());
      zero::Config config = PlainConfig(way, accumulation);
      UseAdam(&config, 0.01, 0.1);
      config.gradient_clipping = 0.01;
      if (kMlpBatch % (way.ranks * accumulation) != 0) continue;
      const MlpRun run = TrainMlp(way, config, 4);
      if (expected.empty()) expected = run.weights;
      ExpectNear(run.weights, expected, 1e-12);
    }
  }
}

struct SevenByFive : nn::Layer<SevenByFive> {
  nn::Linear a{this, "a", 5, 7}, b{this, "b", 7, 5};
  nn::Parameter scale{this, "scale", {}, nn::Init::Ones()};
  Tensor Forward(const Tensor& x) { return Mean(Square(Mul(b(a(x)), scale))); }
};

TEST(OddSizes, PartsThatEndInsideAParameterAreUpdatedWhole) {
  std::vector<Tensor> expected;
  for (const Way& way : AllWays({1, 2, 3, 4})) {
    OnRanks(way, [&](zero::Rank& rank) {
      SevenByFive model;
      zero::Config config = PlainConfig(way);
      UseAdam(&config, 0.05, 0.1);
      config.zero.sub_group_size = 3;
      config.zero.reduce_bucket_size = 5;
      config.zero.allgather_bucket_size = 7;
      auto engine = MakeEngine(model, config, rank);
      for (int step = 0; step < 3; ++step) {
        engine.Backward(engine(RandomTensor(Str("x", step), {2, 5})));  // the same on all ranks
        engine.Step();
      }
      const std::vector<Tensor> got = KeepOfMain(rank, model);
      if (!rank.is_main()) return;
      if (expected.empty()) expected = got;
      ExpectNear(got, expected, 1e-12);
    });
  }
}

TEST(EmptyParameters, TakeNoPartAndKeepTheirShape) {
  struct WithEmpty : nn::Layer<WithEmpty> {
    nn::Linear a{this, "a", 4, 4}, b{this, "b", 4, 0, {.bias = false}};
    Tensor Forward(const Tensor& x) {
      const Tensor y = a(x);
      return Add(Mean(Square(y)), Scale(Sum(b(y)), 0));
    }
  };
  std::vector<Tensor> expected;
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      WithEmpty model;
      zero::Config config = PlainConfig(way);
      UseAdam(&config, 0.05);
      config.train_micro_batch_size_per_gpu = 0;
      config.train_batch_size = 4;
      auto engine = MakeEngine(model, config, rank);
      const int64_t rows = 4 / way.ranks;
      for (int step = 0; step < 3; ++step) {
        const Tensor all = RandomTensor(Str("x", step), {4, 4});
        engine.Backward(engine(all.WithLayout(all.layout().Narrow(0, rank.index() * rows, rows))));
        engine.Step();
      }
      EXPECT_EQ(model.b.weight.shape(), (Shape{0, 4}));
      const std::vector<Tensor> got = KeepOfMain(rank, model);
      if (!rank.is_main()) return;
      if (expected.empty()) expected = got;
      ExpectNear(got, expected, 1e-12);
    });
  }
}

TEST(EmptyParameters, AModelOfNothingElseTrains) {
  struct OnlyEmpty : nn::Layer<OnlyEmpty> {
    nn::Linear a{this, "a", 8, 0};
    Tensor Forward(const Tensor& x) { return a(x); }
  };
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const Way& way : AllWays()) {
      OnRanks(way, [&](zero::Rank& rank) {
        OnlyEmpty model;
        zero::Config config = PlainConfig(way);
        UseDType(&config, dtype);
        auto engine = MakeEngine(model, config, rank);
        const Tensor y = engine(Full({1, 8}, dtype, 1));
        EXPECT_EQ(y.shape(), (Shape{1, 0}));
        EXPECT_EQ(y.dtype(), dtype);
        engine.Backward(Sum(y));
        engine.Step();
        EXPECT_EQ(engine.get_global_grad_norm(), 0);
        const nn::ParamLease lease = model.a.weight.Gather();
        EXPECT_EQ(lease.data().shape(), (Shape{0, 8}));
        EXPECT_EQ(lease.data().dtype(), dtype);
      });
    }
  }
}

TEST(TinyParameters, RanksMayOwnNothing) {
  struct TwoNumbers : nn::Layer<TwoNumbers> {
    nn::Parameter a{this, "a", {1}, nn::Init::Ones()}, b{this, "b", {}, nn::Init::Ones()};
    Tensor Forward(const Tensor& x) { return Sum(Square(Add(Mul(x, a), b))); }
  };
  std::vector<Tensor> expected;
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      TwoNumbers model;
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF32);
      UseAdam(&config, 0.1);
      auto engine = MakeEngine(model, config, rank);
      for (int step = 0; step < 3; ++step) {
        engine.Backward(engine(Vector({0.3, -0.7}, DType::kF32)));
        engine.Step();
      }
      const std::vector<Tensor> got = KeepOfMain(rank, model);
      if (!rank.is_main()) return;
      if (expected.empty()) expected = got;
      ExpectSameBits(got, expected);
      EXPECT_EQ(got[1].shape(), Shape{});
    });
  }
}

// ---- tied ----

TEST(TiedParameters, CountOnceInTheNorm) {
  struct Head : nn::Layer<Head> {
    Head(nn::Module* parent, std::string name, nn::Parameter& table) : Layer(parent, std::move(name)), used(table) {
      Uses(table);
    }
    Tensor Forward(const Tensor& gradient) { return Sum(Mul(gradient, used)); }
    nn::Parameter& used;
  };
  struct Tied : nn::Layer<Tied> {
    nn::Parameter table{this, "table", {8}};
    Head head{this, "head", table};
    Tensor Forward(const Tensor& first, const Tensor& second) { return Add(Sum(Mul(first, table)), head(second)); }
  };
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Tied model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      EXPECT_EQ(model.ParameterCount(), 8);
      engine.Backward(engine(Vector(std::vector<double>(8, 4)), Vector(std::vector<double>(8, 6))));
      engine.Step();
      EXPECT_DOUBLE_EQ(engine.get_global_grad_norm(), 28.284271247461902);
      EXPECT_EQ(Values(model.table), std::vector<double>(8, -10));
    });
  }
}

TEST(TiedParameters, AWeightAppliedTwiceHasOneStateAndTheSameStepsEverywhere) {
  struct Twice : nn::Layer<Twice> {
    nn::Parameter w{this, "w", {3, 3}, nn::Init::Normal(0.5)};
    Tensor Forward(const Tensor& x) { return Mean(Square(Linear(Linear(x, w), w))); }
  };
  std::vector<Tensor> expected;
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Twice model;
      zero::Config config = PlainConfig(way);
      UseDType(&config, DType::kF32);
      UseAdam(&config, 1e-3, 0.01);
      config.train_micro_batch_size_per_gpu = 4 / way.ranks;
      SpyTier* tier = nullptr;
      auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
      const int64_t held =
          std::accumulate(tier->content.unit_numel.begin(), tier->content.unit_numel.end(), int64_t{0});
      EXPECT_EQ(held * (way.stage == 0 ? 1 : way.ranks), engine.padded_numel());
      EXPECT_EQ(tier->content.unit_numel.size(), 1u);
      const int64_t rows = 4 / way.ranks;
      for (int step = 0; step < 10; ++step) {
        const Tensor all = RandomTensor(Str("x", step), {4, 3}, -1, 1, DType::kF32);
        engine.Backward(engine(all.WithLayout(all.layout().Narrow(0, rank.index() * rows, rows))));
        engine.Step();
      }
      const std::vector<Tensor> got = KeepOfMain(rank, model);
      if (!rank.is_main()) return;
      if (expected.empty()) expected = got;
      ExpectNear(got, expected, 1e-6);
    });
  }
}

// ---- frozen ----

TEST(FrozenParameters, KeepTheirBytesHaveNoStateAndAreNotInTheNorm) {
  struct HalfFrozen : nn::Layer<HalfFrozen> {
    // Multiples of the alignment at four ranks, so that states can be counted to the byte.
    nn::Linear frozen{this, "frozen", 16, 16, {.bias = false}}, free{this, "free", 16, 16, {.bias = false}};
    Tensor Forward(const Tensor& x) { return Sum(Square(free(frozen(x)))); }
  };
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Way& way : AllWays()) {
      int64_t state_bytes = 0;
      std::mutex mutex;
      OnRanks(way, [&](zero::Rank& rank) {
        HalfFrozen model;
        model.frozen.SetRequiresGrad(false);
        zero::Config config = PlainConfig(way);
        UseDType(&config, dtype);
        UseAdam(&config, 0.1, 0.5);
        SpyTier* tier = nullptr;
        auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
        const std::vector<Tensor> before = Weights(model);
        for (int step = 0; step < 10; ++step) {
          const Tensor x = RandomTensor(Str("x", step), {2, 16}, -1, 1, dtype);
          engine.Backward(engine(x));
          engine.Step();
          EXPECT_GT(engine.get_global_grad_norm(), 0);
        }
        const std::vector<Tensor> after = Weights(model);
        EXPECT_TRUE(BitEqual(after[0], before[0]));
        EXPECT_FALSE(BitEqual(after[1], before[1]));
        int64_t numel = 0;
        for (int64_t held : tier->content.unit_numel) numel += held;
        const std::lock_guard lock(mutex);
        state_bytes += numel * 4 * (tier->content.state_count + (tier->content.has_master ? 1 : 0));
      });
      const int64_t per_element = dtype == DType::kF32 ? 8 : 12;
      EXPECT_EQ(state_bytes, per_element * 256 * (way.stage == 0 ? way.ranks : 1)) << way.Name();
    }
  }
}

TEST(FrozenParameters, OfHugeValuesDoNotChangeTheNorm) {
  struct Two : nn::Layer<Two> {
    nn::Parameter a{this, "a", {2}, nn::Init::Constant(1e6)}, b{this, "b", {2}};
    Tensor Forward(const Tensor& gradient) { return Sum(Mul(gradient, Add(a, b))); }
  };
  for (const Way& way : AllWays({1, 2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Two model;
      model.a.SetRequiresGrad(false);
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      engine.Backward(engine(Vector({3, 4})));
      engine.Step();
      EXPECT_EQ(engine.get_global_grad_norm(), 5);
      EXPECT_EQ(Values(model.a), (std::vector<double>{1e6, 1e6}));
      EXPECT_EQ(Values(model.b), (std::vector<double>{-3, -4}));
    });
  }
}

// ---- persistence ----

TEST(Persistence, AnyThresholdGivesTheSameStepsAndMoreOfItFewerGathers) {
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<Tensor> expected;
    int64_t last_traffic = std::numeric_limits<int64_t>::max();
    for (int64_t threshold : {0, 100, 1'200, 1'000'000}) {
      const Way way{.stage = stage, .ranks = 2};
      zero::Config config = PlainConfig(way);
      UseAdam(&config, 0.01, 0.1);
      config.gradient_clipping = 0.01;
      config.zero.param_persistence_threshold = threshold;
      int64_t traffic = 0, gathers = 0;
      const MlpRun run = TrainMlp(way, config, 3, [&](const MlpMicroStep& micro) {
        micro.Train();
        if (!micro.rank.is_main()) return;
        traffic = micro.rank.comm().counters()[comm::Purpose::kParams].total().elements;
        gathers = micro.engine.gather_count();
      });
      if (expected.empty()) expected = run.weights;
      ExpectNear(run.weights, expected, 1e-12);
      EXPECT_EQ(gathers == 0, stage < 3 || threshold == 1'000'000) << stage << ", " << threshold;
      if (stage == 3) {
        EXPECT_LT(traffic, last_traffic) << threshold;
      }
      last_traffic = traffic;
    }
  }
}

// ---- read and written by the program ----

TEST(ParameterAccess, OutsideItsScopeItIsAnErrorThatNamesItAtEveryStage) {
  for (const Way& way : AllWays()) {
    OnRanks(way, [&](zero::Rank& rank) {
      Mlp model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      const std::string error = ErrorOf([&] { model.blocks[1].weight.Data(); });
      EXPECT_NE(error.find("'blocks.1.weight' is not gathered"), std::string::npos) << error;
      EXPECT_NE(error.find("Gather()"), std::string::npos) << error;
      {
        const nn::ParamLease lease = model.blocks[1].weight.Gather();
        EXPECT_EQ(lease.data().shape(), (Shape{35, 35}));
        EXPECT_EQ(model.blocks[1].weight.Data().numel(), 35 * 35);
      }
      ErrorOf([&] { model.blocks[1].weight.Data(); });
    });
  }
}

TEST(ParameterAccess, AnEditByOneRankIsSeenByAll) {
  for (const Way& way : AllWays({2, 4})) {
    for (int writer = 0; writer < way.ranks; ++writer) {
      OnRanks(way, [&](zero::Rank& rank) {
        Dot model(70);
        auto engine = MakeEngine(model, PlainConfig(way), rank);
        std::vector<double> values(70);
        std::iota(values.begin(), values.end(), 1);
        const Tensor source = Vector(values);
        model.w.Edit([&](Tensor& data) {
          if (rank.index() == writer) std::copy_n(source.Read().as<double>(), 70, data.Write().as<double>());
        });
        EXPECT_EQ(Values(model.w), values);
        EXPECT_EQ(engine.Evaluate(Vector(std::vector<double>(70, 1))).Item(), 35 * 71);
      });
    }
  }
}

TEST(ParameterAccess, RanksThatWriteDifferentValuesAreAnErrorAndNothingChanges) {
  for (const Way& way : AllWays({2, 4})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(70);
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      SetValues(model.w, std::vector<double>(70, 3));
      const std::string error = ErrorOf([&] {
        model.w.Edit([&](Tensor& data) {
          if (rank.index() < 2) data.Write().as<double>()[5] = rank.index() + 10;
        });
      });
      EXPECT_NE(error.find("ranks 0 and 1 wrote different values to parameter 'w'"), std::string::npos) << error;
      EXPECT_EQ(Values(model.w), std::vector<double>(70, 3));
      SetValues(model.w, std::vector<double>(70, 4));  // and the ranks are still in step
      EXPECT_EQ(Values(model.w), std::vector<double>(70, 4));
    });
  }
}

TEST(ParameterAccess, AnEditThatThrowsLeavesTheParameterAsItWas) {
  for (const Way& way : AllWays({2})) {
    OnRanks(way, [&](zero::Rank& rank) {
      Dot model(3);
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      const std::string error = ErrorOf([&] {
        model.w.Edit([&](Tensor& data) {
          data.Write().as<double>()[0] = 9;
          throw Error("no such file");
        });
      });
      EXPECT_EQ(error, "no such file");
      EXPECT_EQ(Values(model.w), (std::vector<double>{0, 0, 0}));
    });
  }
}

TEST(ParameterAccess, AnEditReachesTheMasterCopy) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Way& way : AllWays()) {
      OnRanks(way, [&](zero::Rank& rank) {
        Dot model(70);
        zero::Config config = PlainConfig(way);
        UseDType(&config, dtype);
        config.fp16.loss_scale = 1;
        config.optimizer.params = {{"lr", 0.0}};
        SpyTier* tier = nullptr;
        auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
        const std::vector<double> values(70, 1.5);
        const Tensor source = Vector(values, dtype);
        model.w.Edit([&](Tensor& data) { std::memcpy(data.Write().data, source.Read().data, 0); });  // changes nothing
        EXPECT_EQ(Values(model.w), std::vector<double>(70, 0));
        model.w.Edit([&](Tensor& data) {
          const View out = data.Write();
          std::memcpy(static_cast<char*>(out.data) + out.layout.offset() * 2, source.Read().data, 140);
        });
        if (rank.is_main()) {
          EXPECT_EQ(tier->Fetch(0, 0, 1).master.At(0), 1.5);
        }
        engine.Backward(engine(Vector(std::vector<double>(70, 1), dtype)));
        engine.Step();
        EXPECT_TRUE(engine.was_step_applied());
        EXPECT_EQ(Values(model.w), values);
      });
    }
  }
}

}  // namespace
}  // namespace tessera::testing
