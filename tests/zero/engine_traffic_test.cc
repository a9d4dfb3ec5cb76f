// SPDX-License-Identifier: Apache-2.0
// What an engine sends, to the element, and what it holds at a time.
#include <numeric>
#include <set>

#include "nn/models/llama.h"
#include "tests/support/golden_inputs.h"
#include "tests/support/tiny_model.h"
#include "tests/zero/engine_harness.h"
#include "zero/partition.h"

namespace tessera::testing {
namespace {

// ---- the law of traffic ----

struct Sent {
  int64_t params = 0, gradients = 0;  // elements
  bool operator==(const Sent&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Sent& sent) {
  return out << sent.params << " of parameters, " << sent.gradients << " of gradients";
}

struct TrafficSetup {
  Way way;
  int accumulation = 1;
  bool recompute = false;
  zero::Reducer reducer = zero::Reducer::kFast;
};

struct TrafficRun {
  std::vector<Sent> steps;        // of rank 0, from the second step
  int64_t numel = 0, unread = 0;  // padded: all units, and those whose data backward never reads
  std::vector<Tensor> weights;
};

TrafficRun MeasureTraffic(const TrafficSetup& setup) {
  TrafficRun run;
  OnRanks(setup.way, [&](zero::Rank& rank) {
    const TinyModel model = MakeTinyModel("llama", setup.recompute);  // its head is not tied
    zero::Config config = PlainConfig(setup.way, setup.accumulation);
    config.zero.reduce_bucket_size = 4096;
    config.tessera.keep_last_unit = false;
    config.tessera.reducer = setup.reducer;
    TrafficRun mine;
    {
      const zero::Partition partition(*model.module, config.zero, setup.way.ranks, DType::kF64);
      for (const char* path : {"embed_tokens.weight", "lm_head.weight"}) {
        mine.unread += partition.UnitNumel(partition.place(model.module->parameter(path)).unit);
      }
    }
    auto engine = MakeEngine(*model.module, config, rank, {.loss_weight_per_sample = kGoldenTokens});
    mine.numel = engine.padded_numel();
    for (int step = 0; step < 4; ++step) {
      rank.comm().ResetCounters();
      for (int part = 0; part < setup.accumulation; ++part) {
        const GoldenBatch batch = MakeGoldenBatch(step, part * setup.way.ranks + rank.index(), 1);
        engine.Backward(engine.Forward([&] { return model.loss(batch.ids, batch.targets); }));
        engine.Step();
      }
      const comm::Counters counters = rank.comm().counters();
      const Sent sent{.params = counters[comm::Purpose::kParams].total().elements,
                      .gradients = counters[comm::Purpose::kGradients].total().elements};
      if (step > 0) mine.steps.push_back(sent);
    }
    mine.weights = Weights(*model.module);
    if (rank.is_main()) run = std::move(mine);
  });
  return run;
}

// In units of (N - 1) / N elements.
Sent Law(const TrafficSetup& setup, int64_t numel, int64_t unread) {
  const int64_t parts = setup.accumulation;
  switch (setup.way.stage) {
    case 0:
      return {.params = 0, .gradients = 2 * numel};
    case 1:
      return {.params = numel, .gradients = numel};
    case 2:
      return {.params = numel, .gradients = parts * numel};
    default:
      return {.params = parts * (2 * numel - unread), .gradients = parts * numel};
  }
}

void ExpectLaw(const TrafficSetup& setup, const TrafficRun& run) {
  const int64_t ranks = setup.way.ranks;
  Sent expected = Law(setup, run.numel, run.unread);
  ASSERT_EQ(expected.params % ranks + expected.gradients % ranks, 0);
  expected = {.params = expected.params / ranks * (ranks - 1), .gradients = expected.gradients / ranks * (ranks - 1)};
  EXPECT_GT(run.unread, 2 * 67 * 32 - 1);
  EXPECT_EQ(run.steps, std::vector<Sent>(3, expected)) << setup.way.Name() << ", " << setup.accumulation;
}

TEST(Traffic, IsTheLawToTheElementAtEveryStage) {
  for (const Way& way : AllWays({2, 4})) {
    for (int accumulation : {1, 3}) {
      const TrafficSetup setup{.way = way, .accumulation = accumulation};
      ExpectLaw(setup, MeasureTraffic(setup));
    }
  }
}

TEST(Traffic, OverlapAndGatheringAheadChangeNeitherItNorABit) {
  for (const Way& way : AllWays({2, 4})) {
    TrafficSetup setup{.way = way, .accumulation = 2};
    const TrafficRun plain = MeasureTraffic(setup);
    setup.way.overlap = true;
    const TrafficRun overlapping = MeasureTraffic(setup);
    ExpectLaw(setup, overlapping);
    ExpectSameBits(overlapping.weights, plain.weights);
  }
}

TEST(Traffic, RecomputeGathersNothingMore) {
  for (bool overlap : {false, true}) {
    const TrafficSetup setup{.way = {.stage = 3, .ranks = 2, .overlap = overlap}, .recompute = true};
    ExpectLaw(setup, MeasureTraffic(setup));
  }
}

TEST(Traffic, OfTheCanonicalReducerIsAsMuchButAtEveryMicroStep) {
  for (const Way& way : AllWays({2})) {
    const TrafficSetup setup{.way = way, .accumulation = 3, .reducer = zero::Reducer::kCanonical};
    const TrafficRun run = MeasureTraffic(setup);
    const int64_t gradients = (way.stage == 0 ? 2 : 1) * 3 * run.numel / 2;
    for (const Sent& sent : run.steps) EXPECT_EQ(sent.gradients, gradients) << way.Name();
  }
}

TEST(Traffic, OneRankSendsNothing) {
  for (const Way& way : AllWays({1})) {
    const TrafficSetup setup{.way = way, .accumulation = 2};
    EXPECT_EQ(MeasureTraffic(setup).steps, std::vector<Sent>(3)) << way.Name();
  }
}

// ---- what is gathered at a time ----

struct Deep : nn::Layer<Deep> {
  static constexpr int64_t kLayers = 24;
  Tensor Forward(const Tensor& x) {
    Tensor h = x;
    for (nn::Linear& layer : layers) h = Tanh(layer(h));
    return Mean(Square(h));
  }
  nn::ModuleList<nn::Linear> layers{this, "layers", kLayers, 33, 33};
};

struct GatherRun {
  int64_t layer_numel = 0, peak_numel = 0, peak_bytes = 0, gathers = 0;  // gathers: of one steady step
  int64_t param_bytes = 0, state_bytes = 0, slot_growth_bytes = 0;       // growth: over the last two steps
  std::vector<Tensor> weights;
};

GatherRun TrainDeep(const Way& way, const std::function<void(zero::Config*)>& change) {
  GatherRun run;
  OnRanks(way, [&](zero::Rank& rank) {
    Deep model;
    zero::Config config = PlainConfig(way);
    UseDType(&config, DType::kBF16);
    UseAdam(&config, 0.01);
    change(&config);
    auto engine = MakeEngine(model, config, rank);
    GatherRun mine{.layer_numel = engine.padded_numel() / Deep::kLayers};
    int64_t gathers = 0;
    for (int step = 0; step < 5; ++step) {
      if (step == 3) mine.slot_growth_bytes = -rank.allocator().stats()[MemoryTag::kGatherSlots];
      gathers = engine.gather_count();
      engine.Backward(engine(RandomTensor(Str("x", step, rank.index()), {2, 33}, -1, 1, DType::kBF16)));
      engine.Step();
    }
    const AllocatorStats stats = rank.allocator().stats();
    mine.slot_growth_bytes += stats[MemoryTag::kGatherSlots];
    mine.gathers = engine.gather_count() - gathers;
    mine.peak_numel = engine.peak_gathered_numel();
    mine.peak_bytes = stats.peak_by_tag[static_cast<size_t>(MemoryTag::kGatherSlots)];
    mine.param_bytes = stats[MemoryTag::kParams];
    mine.state_bytes = stats[MemoryTag::kStates];
    mine.weights = Weights(model);
    if (rank.is_main()) run = std::move(mine);
  });
  return run;
}

TEST(Gathered, IsBoundedByTheMaximumAndTheLargestUnitWhateverIsKeptAndGatheredAhead) {
  for (bool overlap : {false, true}) {
    for (int ranks : {2, 4}) {
      for (int64_t layers : {0, 1, 2, 7}) {
        for (int64_t reuse : {0, 1'000'000}) {
          const int64_t max_live = layers * 1280;
          const GatherRun run = TrainDeep({.stage = 3, .ranks = ranks, .overlap = overlap}, [&](zero::Config* config) {
            config->zero.max_live_parameters = max_live;
            config->zero.max_reuse_distance = reuse;
            config->zero.prefetch_bucket_size = 1'000'000;
          });
          SCOPED_TRACE(Str(overlap ? "overlapping, " : "", ranks, " ranks, ", layers, " layers, reuse ", reuse));
          EXPECT_EQ(run.layer_numel, 1280);
          EXPECT_LE(run.peak_numel, std::max(max_live, run.layer_numel));
          EXPECT_LE(run.peak_bytes, 2 * 2 * (max_live + run.layer_numel));
          EXPECT_GE(run.gathers, Deep::kLayers + 1);
          EXPECT_EQ(run.slot_growth_bytes, 0);  // the slots of a steady step are those of the last one
        }
      }
    }
  }
}

TEST(Gathered, WhatIsNeededAgainSoonIsKeptWhenThereIsRoom) {
  const Way way{.stage = 3, .ranks = 2};
  const auto gathers = [&](bool keep_last, int64_t reuse, int64_t max_live) {
    return TrainDeep(way,
                     [&](zero::Config* config) {
                       config->tessera.keep_last_unit = keep_last;
                       config->zero.max_reuse_distance = reuse;
                       config->zero.max_live_parameters = max_live;
                     })
        .gathers;
  };
  const int64_t all = 1'000'000'000, n = Deep::kLayers;
  EXPECT_EQ(gathers(false, all, all), 2 * n - 1);  // the first layer's backward reads no weight
  EXPECT_EQ(gathers(true, 0, all), 2 * n - 2);
  EXPECT_EQ(gathers(true, 1280, all), 2 * n - 3);
  EXPECT_EQ(gathers(true, all, all), n);
  EXPECT_GT(gathers(true, all, 5 * 1280), n);
}

TEST(Gathered, LimitsChangeNoBit) {
  for (bool overlap : {false, true}) {
    const Way way{.stage = 3, .ranks = 2, .overlap = overlap};
    const GatherRun free = TrainDeep(way, [](zero::Config*) {});
    const GatherRun tight = TrainDeep(way, [](zero::Config* config) {
      config->zero.max_live_parameters = 1;
      config->zero.max_reuse_distance = 1'000'000;
    });
    ExpectSameBits(tight.weights, free.weights);
  }
}

// Small parameters of all layers are reduced last: no unit may wait for them, in the first backward either.
TEST(Held, GradientsOfOneUnitAtATimeFromTheFirstBackwardOn) {
  OnRanks({.stage = 2, .ranks = 2}, [&](zero::Rank& rank) {
    const TinyModel model = MakeTinyModel("llama", false);
    zero::Config config = PlainConfig({.stage = 2, .ranks = 2});
    config.zero.param_persistence_threshold = 100;  // the norms
    const zero::Partition partition(*model.module, config.zero, 2, DType::kF64);
    std::set<int64_t> sizes;  // slots are shared by units of one size
    for (int unit = 0; unit < partition.unit_count(); ++unit) sizes.insert(partition.UnitNumel(unit));
    auto engine = MakeEngine(*model.module, config, rank, {.loss_weight_per_sample = kGoldenTokens});
    const GoldenBatch batch = MakeGoldenBatch(0, rank.index(), 1);
    engine.Backward(engine.Forward([&] { return model.loss(batch.ids, batch.targets); }));
    EXPECT_EQ(rank.allocator().stats().peak_by_tag[static_cast<size_t>(MemoryTag::kGradSlots)],
              std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) * ItemSize(DType::kF64));
  });
}

TEST(Held, ParametersAndStatesOfStageThreeHalveWithTwiceTheRanks) {
  const GatherRun two = TrainDeep({.stage = 3, .ranks = 2}, [](zero::Config*) {}),
                  four = TrainDeep({.stage = 3, .ranks = 4}, [](zero::Config*) {});
  EXPECT_NEAR(static_cast<double>(two.param_bytes) / static_cast<double>(four.param_bytes), 2, 0.04);
  EXPECT_NEAR(static_cast<double>(two.state_bytes) / static_cast<double>(four.state_bytes), 2, 0.04);
  const int64_t numel = two.layer_numel * Deep::kLayers / 2;
  EXPECT_EQ(two.param_bytes, 2 * numel);
  EXPECT_GE(two.state_bytes, 12 * numel);        // master and two moments
  EXPECT_LE(two.state_bytes, 12 * numel + 128);  // and the scalars of the step
}

}  // namespace
}  // namespace tessera::testing
