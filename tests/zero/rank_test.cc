// SPDX-License-Identifier: Apache-2.0
// Ranks that fail: all end, soon, and the status says which one it was.
#include "zero/rank.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "autograd/custom.h"
#include "tensor/context.h"
#include "tensor/thread_pool.h"
#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool StartsWith(const std::string& text, const std::string& start) { return text.find(start) == 0; }

enum class Moment { kBeforeForward, kInForward, kBeforeBackward, kInBackward, kBeforeStep };

// Trains for six steps, or until `at_moment` throws.
void Train(const Way& way, zero::Rank& rank, const std::function<void(int step, Moment moment)>& at_moment) {
  Mlp model;
  int step = 0;
  model.between = [&](const Tensor& h) {
    at_moment(step, Moment::kInForward);
    return CustomFunction(
        "moment", {h}, [](SavedValues&, std::span<const Tensor> in) { return in[0]; },
        [&](const SavedValues&, const Tensor& dy) -> std::vector<Tensor> {
          at_moment(step, Moment::kInBackward);
          return {dy};
        });
  };
  auto engine = MakeEngine(model, PlainConfig(way), rank);
  const Tensor x = RandomTensor("x", {2, Mlp::kInputs}), target = RandomTensor("target", {2, Mlp::kOutputs});
  for (; step < 6; ++step) {
    at_moment(step, Moment::kBeforeForward);
    const Tensor loss = engine(x, target);
    at_moment(step, Moment::kBeforeBackward);
    engine.Backward(loss);
    at_moment(step, Moment::kBeforeStep);
    engine.Step();
  }
}

std::vector<Way> SomeWays() {
  std::vector<Way> ways = AllWays({3}, false);
  for (const Way& way : AllWays({3}, true)) ways.push_back(way);
  return ways;
}

TEST(RanksThatFail, AnExceptionEndsAllAndTheStatusNamesItsRank) {
  for (const Way& way : SomeWays()) {
    for (Moment moment : {Moment::kBeforeForward, Moment::kInForward, Moment::kBeforeBackward, Moment::kInBackward,
                          Moment::kBeforeStep}) {
      const Clock::time_point start = Clock::now();
      const std::string failure = FailureOf(way, [&](zero::Rank& rank) {
        Train(way, rank, [&](int step, Moment now) {
          if (rank.index() == 1 && step == 2 && now == moment) throw std::runtime_error("the disk is full");
        });
      });
      EXPECT_TRUE(StartsWith(failure, "rank 1: ")) << way.Name() << ": " << failure;
      EXPECT_NE(failure.find("the disk is full"), std::string::npos) << failure;
      EXPECT_EQ(failure.find("rank 0:"), std::string::npos) << failure;  // it only fell with it
      EXPECT_LT(SecondsSince(start), 4);
    }
  }
}

TEST(RanksThatFail, AnExceptionOfUnknownTypeCountsToo) {
  const std::string failure = FailureOf({.ranks = 2}, [](zero::Rank& rank) {
    if (rank.index() == 1) throw 42;
    rank.comm().Barrier();
  });
  EXPECT_EQ(failure, "rank 1: an exception of unknown type");
}

TEST(RanksThatFail, ALoneRankIsNamedToo) {
  EXPECT_EQ(FailureOf({.ranks = 1}, [](zero::Rank&) { throw Error("no data"); }), "rank 0: no data");
}

TEST(RanksThatFail, OneThatReturnsEarlyIsNamedByThoseThatWaitForIt) {
  for (const Way& way : SomeWays()) {
    const Clock::time_point start = Clock::now();
    const std::string failure = FailureOf(way, [&](zero::Rank& rank) {
      struct Enough {};
      try {
        Train(way, rank, [&](int step, Moment) {
          if (rank.index() == 2 && step == 3) throw Enough();
        });
      } catch (const Enough&) {
      }
    });
    EXPECT_NE(failure.find("rank 2"), std::string::npos) << way.Name() << ": " << failure;
    EXPECT_LT(SecondsSince(start), 4);
  }
}

TEST(RanksThatFail, OneThatStaysSilentIsNamedAfterTheTimeout) {
  for (const Way& way : {Way{.stage = 0, .ranks = 3},
                         {.stage = 2, .ranks = 3, .overlap = true},
                         {.stage = 3, .ranks = 3, .overlap = true}}) {
    std::atomic<bool> others_have_failed = false;
    const Clock::time_point start = Clock::now();
    const std::string failure = FailureOf(
        way,
        [&](zero::Rank& rank) {
          try {
            Train(way, rank, [&](int step, Moment now) {
              if (rank.index() != 1 || step != 2 || now != Moment::kBeforeForward) return;
              while (!others_have_failed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            });
          } catch (...) {
            others_have_failed = true;
            throw;
          }
        },
        1);
    EXPECT_NE(failure.find("rank 1"), std::string::npos) << way.Name() << ": " << failure;
    EXPECT_LT(SecondsSince(start), 6);
  }
}

TEST(RanksThatFail, OneThatCallsSomethingElseIsNamedWithBothCalls) {
  const Way way{.stage = 3, .ranks = 3};
  const Clock::time_point start = Clock::now();
  const std::string failure = FailureOf(way, [&](zero::Rank& rank) {
    Train(way, rank, [&](int step, Moment now) {
      if (rank.index() != 1 || step != 2 || now != Moment::kBeforeForward) return;
      Stream stream(StreamKind::kInline);
      rank.comm().AllReduce(Zeros({200}, DType::kF64), stream);
    });
  });
  EXPECT_NE(failure.find("rank 1 calls all_reduce of 200 f64"), std::string::npos) << failure;
  EXPECT_NE(failure.find("all_gather"), std::string::npos) << failure;
  EXPECT_LT(SecondsSince(start), 4);
}

TEST(RanksThatFail, OneThatTakesAnotherBranchIsFoundWhenGathersDiffer) {
  struct Branching : nn::Layer<Branching> {
    Branching() {
      a.SetUnit();
      b.SetUnit();
    }
    Tensor Forward(const Tensor& x, bool left) { return Mean(left ? a(x) : b(x)); }
    nn::Linear a{this, "a", 33, 33}, b{this, "b", 33, 66};
  };
  for (bool overlap : {false, true}) {
    const Way way{.stage = 3, .ranks = 2, .overlap = overlap};
    const std::string failure = FailureOf(way, [&](zero::Rank& rank) {
      Branching model;
      auto engine = MakeEngine(model, PlainConfig(way), rank);
      engine(RandomTensor("x", {1, 33}), rank.index() == 0);
      engine.EvaluateWith([&] { return 0; });
      rank.comm().Barrier();
    });
    EXPECT_NE(failure.find("rank 1 calls all_gather"), std::string::npos) << failure;
  }
}

TEST(RanksThatFail, TheNextRunIsSound) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_NE(FailureOf({.ranks = 2},
                        [](zero::Rank& rank) {
                          if (rank.is_main()) throw Error("once");
                          rank.comm().Barrier();
                        }),
              "");
    OnRanks({.ranks = 2}, [](zero::Rank& rank) { EXPECT_TRUE(rank.AllAgree(true)); });
  }
}

TEST(RanksDeathTest, OneThatNeverComesBackEndsTheProcessAndIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    const absl::Status status = zero::RunRanks(
        {.world_size = 2, .threads_per_rank = 1, .comm_timeout_s = 0.2, .grace_s = 0.5}, [](zero::Rank& rank) {
          if (rank.index() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
          rank.comm().Barrier();
        });
    std::fprintf(stderr, "came back: %s\n", std::string(status.message()).c_str());
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1), "ranks: 1 did not come back within 0.5 s");
}

// ---- ranks that do not fail ----

TEST(Ranks, EachHasItsThreadsItsAllocatorAndItsIndex) {
  std::atomic<int> indexes = 0;
  const absl::Status status = zero::RunRanks({.world_size = 3, .threads_per_rank = 2}, [&](zero::Rank& rank) {
    EXPECT_EQ(rank.world_size(), 3);
    EXPECT_EQ(rank.is_main(), rank.index() == 0);
    EXPECT_EQ(CurrentContext().rank, rank.index());
    EXPECT_EQ(NumThreads(), 2);
    const int64_t before = rank.allocator().stats().bytes;
    const Tensor tensor = Zeros({1000}, DType::kF32);
    EXPECT_EQ(rank.allocator().stats().bytes - before, 4000);
    indexes += 1 << rank.index();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(indexes, 7);
}

TEST(Ranks, TensorsMayOutliveThem) {
  Tensor kept;
  OnRanks({.ranks = 2}, [&](zero::Rank& rank) {
    if (rank.is_main()) kept = Full({100}, DType::kF32, 3);
  });
  EXPECT_EQ(kept.At(99), 3);
}

TEST(Ranks, AWorldOfNoneIsAnError) {
  const absl::Status status = zero::RunRanks({.world_size = 0}, [](zero::Rank&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(Ranks, AllAgreeOnlyWhenAllDo) {
  OnRanks({.ranks = 3}, [](zero::Rank& rank) {
    EXPECT_TRUE(rank.AllAgree(true));
    EXPECT_FALSE(rank.AllAgree(rank.index() != 1));
    EXPECT_FALSE(rank.AllAgree(false));
  });
}

}  // namespace
}  // namespace tessera::testing
