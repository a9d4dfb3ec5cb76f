// SPDX-License-Identifier: Apache-2.0
// The ledger's counters and records, the meeting place under it, and the sums' rule.
#include "comm/ledger.h"

#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "comm/rank_order_sum.h"
#include "comm/seats.h"
#include "tests/comm/ranks.h"

namespace tessera::comm::testing {
namespace {

Tensor Flat(int64_t numel, DType dtype = DType::kF32) { return Zeros({numel}, dtype); }

TEST(Counters, FollowTheWrittenRuleByOpAndPurpose) {
  for (const int n : {1, 2, 3, 4}) {
    World world({.size = n, .ledger = true, .stream = StreamKind::kWorker});
    std::vector<Counters> counters(static_cast<size_t>(n));
    const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
      comm.AllGather(Flat(5), Flat(5 * n), stream, {.purpose = Purpose::kParams});
      comm.AllGather(Flat(7, DType::kBF16), Flat(10 * n, DType::kBF16), stream,
                     {.pitch = 10, .purpose = Purpose::kParams});
      comm.ReduceScatter(Flat(6 * n), Flat(6), stream, {.purpose = Purpose::kGradients});
      comm.AllReduce(Flat(10, DType::kF64), stream, {.purpose = Purpose::kGradients});
      comm.AllToAll(Flat(2 * n), Flat(2 * n), stream, {.purpose = Purpose::kGradients});
      comm.Broadcast(Flat(9), 0, stream);
      comm.AllGatherBytes("12345");
      comm.Barrier();
      counters[static_cast<size_t>(comm.rank())] = static_cast<Ledger&>(comm).counters();
      static_cast<Ledger&>(comm).ResetCounters();
      EXPECT_EQ(static_cast<Ledger&>(comm).counters()[Purpose::kParams].total(), Traffic{});
    });
    EXPECT_EQ(outcome.errors, std::vector<std::string>(static_cast<size_t>(n)));
    int64_t all_reduce = 0;
    for (int rank = 0; rank < n; ++rank) {
      const Counters& c = counters[static_cast<size_t>(rank)];
      const int64_t others = n - 1, own = 10 / n + (rank < 10 % n ? 1 : 0);
      EXPECT_EQ(c[Purpose::kParams].total(), (Traffic{2, 12 * others, (20 + 14) * others}));
      EXPECT_EQ(c[Purpose::kParams][Op::kAllGather], c[Purpose::kParams].total());
      EXPECT_EQ(c[Purpose::kGradients][Op::kReduceScatter], (Traffic{1, 6 * others, 24 * others}));
      const int64_t sent = 10 - own + own * others;
      EXPECT_EQ(c[Purpose::kGradients][Op::kAllReduce], (Traffic{1, sent, 8 * sent}));
      EXPECT_TRUE(10 % n != 0 || sent == 2 * 10 * others / n);
      EXPECT_EQ(c[Purpose::kGradients][Op::kAllToAll], (Traffic{1, 2 * others, 8 * others}));
      const int64_t root = rank == 0 ? 1 : 0;
      EXPECT_EQ(c[Purpose::kControl][Op::kBroadcast], (Traffic{1, 9 * others * root, 36 * others * root}));
      EXPECT_EQ(c[Purpose::kControl][Op::kAllGatherBytes], (Traffic{1, 5 * others, 5 * others}));
      EXPECT_EQ(c[Purpose::kControl][Op::kBarrier], (Traffic{1, 0, 0}));
      all_reduce += sent;
    }
    EXPECT_EQ(all_reduce, 2 * 10 * (n - 1));
  }
}

TEST(Counters, PiecesCoverTheBufferInOrder) {
  for (const int size : {1, 2, 3, 7, 8}) {
    for (const int64_t count : {0, 1, 2, 6, 7, 8, 9, 1000}) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Piece piece = PieceOf(count, rank, size);
        EXPECT_EQ(piece.begin, end);
        EXPECT_LE(piece.count - count / size, 1);
        end += piece.count;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(Records, HoldTheLastTwentyCallsOfEachRank) {
  World world({.size = 2, .ledger = true});
  const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
    for (int i = 0; i < 30; ++i) comm.AllReduce(Flat(i), stream);
    const std::unique_ptr<Communicator> part = comm.Split(comm.rank(), 0);
    part->Barrier();
    comm.AllReduce(Flat(100 + comm.rank()), stream);
  });
  EXPECT_EQ(outcome.aborted, std::vector<bool>({true, true}));
  const std::string recent = world.board().Recent();
  EXPECT_EQ(std::count(recent.begin(), recent.end(), '\n'), 40);
  for (const int rank : {0, 1}) {
    std::string expected;
    for (int i = 14; i <= 30; ++i) expected += Str("rank ", rank, ": all_reduce #", i, " of ", i - 1, " f32 (done)\n");
    expected += Str("rank ", rank, ": split #1 (done)\nrank ", rank, ": barrier #1 in the group of rank ", rank,
                    " (done)\nrank ", rank, ": all_reduce #31 of ", 100 + rank, " f32 (begun)\n");
    EXPECT_NE(recent.find(expected), std::string::npos) << recent;
  }
}

TEST(Seats, EpochsWrapWithoutStoppingAnybody) {
  Seats seats(2);
  for (const uint32_t epoch : {0x3FFFFFFFu, 0x7FFFFFFEu, 0x80000000u, 0x80000001u, 0xBFFFFFFFu}) {
    EXPECT_FALSE(seats.HasArrived(0, epoch));
    seats.Arrive(0, epoch);
    EXPECT_TRUE(seats.HasArrived(0, epoch));
    EXPECT_FALSE(seats.HasArrived(0, epoch + 1));
    EXPECT_EQ(seats.WaitForAll(epoch, 0.001), Seats::Outcome::kTimedOut);
    seats.Arrive(1, epoch);
    EXPECT_EQ(seats.WaitForAll(epoch, 0.001), Seats::Outcome::kMet);
  }
}

TEST(Seats, AnAbortWakesSleepersAtOnceAndStays) {
  Seats seats(2);
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] { EXPECT_EQ(seats.WaitForAll(1, 600), Seats::Outcome::kAborted); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  seats.Abort();
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  seats.Arrive(0, 1);
  seats.Arrive(1, 1);
  EXPECT_EQ(seats.WaitForAll(1, 600), Seats::Outcome::kAborted);
  EXPECT_FALSE(seats.BeginReading(0));
}

TEST(RankOrderSum, RoundsOnceAndNotAfterEveryRank) {
  // bf16 has 8 bits: 256 + 1 is lost if it is rounded, 256 + 1 + 1 is not.
  const std::vector<BFloat16> big(3000, ToBFloat16(256)), one(3000, ToBFloat16(1));
  std::vector<BFloat16> sum(3000);
  const auto bytes = [](const std::vector<BFloat16>& x) { return reinterpret_cast<const std::byte*>(x.data()); };
  const std::byte* sources[] = {bytes(big), bytes(one), bytes(one)};
  SumInRankOrder(DType::kBF16, sources, reinterpret_cast<std::byte*>(sum.data()), 3000);
  for (const BFloat16 x : sum) ASSERT_EQ(ToFloat(x), 258);
}

}  // namespace
}  // namespace tessera::comm::testing
