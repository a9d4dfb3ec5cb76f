// SPDX-License-Identifier: Apache-2.0
// Settings that change how a step is done, and not what it gives: each seen by its effect.
#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

void TrainOn(zero::ModelEngine<Dot>& engine, const Tensor& gradient) {
  engine.Backward(engine(gradient));
  engine.Step();
}

struct Calls {
  int64_t reduces = 0, gathers = 0;
};

// Of one step at stage 2 on two ranks, a unit of 128 elements with its padding.
Calls CallsWith(int64_t reduce_bucket_size, int64_t allgather_bucket_size) {
  Calls calls;
  OnRanks({.stage = 2, .ranks = 2}, [&](zero::Rank& rank) {
    Dot model(128);
    zero::Config config = PlainConfig({.stage = 2, .ranks = 2});
    config.zero.reduce_bucket_size = reduce_bucket_size;
    config.zero.allgather_bucket_size = allgather_bucket_size;
    auto engine = MakeEngine(model, config, rank);
    rank.comm().ResetCounters();
    TrainOn(engine, Full({128}, DType::kF64, 1));
    const comm::Counters counters = rank.comm().counters();
    if (rank.is_main()) {
      calls = {counters[comm::Purpose::kGradients].total().calls, counters[comm::Purpose::kParams].total().calls};
    }
  });
  return calls;
}

TEST(Buckets, OfFewerElementsMakeMoreCollectives) {
  EXPECT_EQ(CallsWith(1'000'000, 1'000'000).reduces, 1);
  EXPECT_EQ(CallsWith(1'000'000, 1'000'000).gathers, 1);
  EXPECT_EQ(CallsWith(32, 1'000'000).reduces, 4);
  EXPECT_EQ(CallsWith(1'000'000, 16).gathers, 8);
}

TEST(SubGroups, OfFewerElementsMakeMorePiecesOfTheUpdate) {
  for (const auto& [size, expected] : {std::pair<int64_t, int>{1000, 1}, {10, 10}}) {
    int fetches = 0;
    OnRanks({.stage = 1, .ranks = 1}, [&, size = size](zero::Rank& rank) {
      Dot model(100);
      zero::Config config = PlainConfig({.stage = 1, .ranks = 1});
      config.zero.sub_group_size = size;
      SpyTier* tier = nullptr;
      auto engine = MakeEngine(model, config, rank, SpyingOptions(&tier));
      TrainOn(engine, Full({100}, DType::kF64, 1));
      fetches = tier->fetches;
    });
    EXPECT_EQ(fetches, expected);
  }
}

TEST(WallClockBreakdown, PrintsTheTimesOfThePhases) {
  for (bool on : {false, true}) {
    std::vector<std::string> lines;
    OnRanks({.stage = 0, .ranks = 1}, [&](zero::Rank& rank) {
      Dot model(2);
      zero::Config config = PlainConfig({.stage = 0, .ranks = 1});
      config.wall_clock_breakdown = on;
      config.steps_per_print = 2;
      auto engine = MakeEngine(model, config, rank, ListeningOptions(&lines));
      for (int step = 0; step < 4; ++step) TrainOn(engine, Vector({1, 1}));
    });
    int breakdowns = 0;
    for (const std::string& line : lines) {
      breakdowns += line.find("fwd: ") != std::string::npos && line.find("bwd: ") != std::string::npos &&
                    line.find("step: ") != std::string::npos;
    }
    EXPECT_EQ(breakdowns, on ? 2 : 0);
    EXPECT_EQ(lines.size(), on ? 4u : 2u);
  }
}

}  // namespace
}  // namespace tessera::testing
