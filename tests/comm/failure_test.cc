// SPDX-License-Identifier: Apache-2.0
// What becomes of a group whose ranks do not do the same: every rank ends, soon, with one line that says why.
#include <atomic>
#include <chrono>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "tests/support/fault_injector.h"

namespace tessera::comm::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Fails a test that took long: a fault is found at once, not at some time limit.
class Quick {
 public:
  explicit Quick(double seconds = 2) : limit_(seconds) {}
  ~Quick() {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start_;
    EXPECT_LT(taken.count(), limit_);
  }

 private:
  double limit_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Tensor Flat(int64_t numel, DType dtype = DType::kF32) { return Zeros({numel}, dtype); }

// The ledger's line is the same on every rank, and each rank's later calls throw it too.
class LedgerFault : public ::testing::TestWithParam<StreamKind> {
 protected:
  std::string ReasonOf(int size, World::Body body, double limit_s = 2, double timeout_s = 30, int absent = -1) {
    const Quick quick(limit_s);
    World world({.size = size, .ledger = true, .stream = GetParam(), .timeout_s = timeout_s});
    const Outcome outcome = world.OnRanks(
        [&](Communicator& comm, Stream& stream) {
          try {
            body(comm, stream);
            stream.Synchronize();
          } catch (const AbortedError& error) {
            const Tensor x = Flat(2);
            const auto again = [&](auto&& call) {
              try {
                call();
                ADD_FAILURE() << "a call after the abort went through";
              } catch (const AbortedError& later) {
                EXPECT_STREQ(later.what(), error.what());
              }
            };
            again([&] { comm.AllReduce(x, stream); });
            again([&] { comm.Barrier(); });
            again([&] { comm.AllGatherBytes("x"); });
            throw;
          }
        },
        absent);
    const std::string reason = world.board().failure();
    EXPECT_EQ(reason.find('\n'), std::string::npos);
    for (int rank = 0; rank < size; ++rank) {
      const auto r = static_cast<size_t>(rank);
      EXPECT_EQ(outcome.errors[r], outcome.aborted[r] ? reason : outcome.errors[r]);
    }
    outcome_ = outcome;
    return reason;
  }
  Outcome outcome_;
};

std::string EitherWay(const std::string& prefix, const std::string& a, const std::string& b) {
  return prefix + a + ", " + b + "|" + prefix + b + ", " + a;
}
void ExpectOneOf(const std::string& text, const std::string& alternatives) {
  const size_t bar = alternatives.find('|');
  EXPECT_THAT(text, AnyOf(alternatives.substr(0, bar), alternatives.substr(bar + 1)));
}

TEST_P(LedgerFault, ADifferentCountIsNamedBeforeMemoryIsTouched) {
  std::vector<Tensor> buffers = {Full({100}, DType::kF32, 3), Full({200}, DType::kF32, 3)};
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    for (int i = 0; i < 11; ++i) comm.AllReduce(Flat(4), stream);
    comm.AllReduce(buffers[static_cast<size_t>(comm.rank())], stream);
  });
  ExpectOneOf(reason, EitherWay("comm: collective #12: ", "rank 0 calls all_reduce of 100 f32",
                                "rank 1 calls all_reduce of 200 f32"));
  EXPECT_THAT(outcome_.aborted, Each(true));
  for (const Tensor& buffer : buffers) EXPECT_THAT(buffer.ToVector(), Each(3.0));
}

TEST_P(LedgerFault, ADifferentOpIsNamed) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    if (comm.rank() == 0) {
      comm.AllReduce(Flat(8), stream);
    } else {
      comm.ReduceScatter(Flat(16), Flat(8), stream);
    }
  });
  ExpectOneOf(reason, EitherWay("comm: collective #1: ", "rank 0 calls all_reduce of 8 f32",
                                "rank 1 calls reduce_scatter of 8 f32"));
}

TEST_P(LedgerFault, ADifferentDTypeIsNamed) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    comm.Broadcast(Flat(8, comm.rank() == 0 ? DType::kBF16 : DType::kF16), 0, stream);
  });
  ExpectOneOf(reason, EitherWay("comm: collective #1: ", "rank 0 calls broadcast of 8 bf16 from rank 0",
                                "rank 1 calls broadcast of 8 f16 from rank 0"));
}

TEST_P(LedgerFault, ADifferentRootIsNamed) {
  const std::string reason =
      ReasonOf(2, [&](Communicator& comm, Stream& stream) { comm.Broadcast(Flat(8), comm.rank(), stream); });
  ExpectOneOf(reason, EitherWay("comm: collective #1: ", "rank 0 calls broadcast of 8 f32 from rank 0",
                                "rank 1 calls broadcast of 8 f32 from rank 1"));
}

TEST_P(LedgerFault, ADifferentPitchIsNamed) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    comm.AllGather(Flat(8), Flat(20), stream, {.pitch = 10 + comm.rank()});
  });
  ExpectOneOf(reason, EitherWay("comm: collective #1: ", "rank 0 calls all_gather of 8 f32 with pitch 10",
                                "rank 1 calls all_gather of 8 f32 with pitch 11"));
}

TEST_P(LedgerFault, ADifferentPurposeIsNamed) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    comm.AllReduce(Flat(8), stream, {.purpose = comm.rank() == 0 ? Purpose::kParams : Purpose::kGradients});
  });
  ExpectOneOf(reason, EitherWay("comm: collective #1: ", "rank 0 calls all_reduce of 8 f32 for params",
                                "rank 1 calls all_reduce of 8 f32 for gradients"));
}

TEST_P(LedgerFault, AHostCallAgainstACollectiveIsNamed) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
    comm.AllReduce(Flat(4), stream);
    comm.Barrier();
    if (comm.rank() == 0) {
      comm.Barrier();
    } else {
      comm.AllReduce(Flat(9), stream);
      stream.Synchronize();
    }
  });
  EXPECT_THAT(reason, AnyOf("comm: rank 0 calls barrier #2 where rank 1 calls all_reduce #2 of 9 f32",
                            "comm: rank 1 calls all_reduce #2 of 9 f32 where rank 0 calls barrier #2"));
}

TEST_P(LedgerFault, OneDivergingRankOfFourIsFound) {
  const std::string reason =
      ReasonOf(4, [&](Communicator& comm, Stream& stream) { comm.AllReduce(Flat(comm.rank() == 2 ? 7 : 8), stream); });
  EXPECT_THAT(reason, StartsWith("comm: collective #1: rank "));
  EXPECT_THAT(reason, HasSubstr("rank 2 calls all_reduce of 7 f32"));
  EXPECT_THAT(outcome_.aborted, Each(true));
}

TEST_P(LedgerFault, AnExceptionOfOneRankEndsTheOthersWithItsMessage) {
  const std::string reason = ReasonOf(3, [&](Communicator& comm, Stream& stream) {
    comm.Barrier();
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // let the others get into their wait
      throw Error("out of luck\nsecond line");
    }
    comm.AllReduce(Flat(4), stream);
    stream.Synchronize();
  });
  EXPECT_EQ(reason, "comm: rank 1 failed: out of luck; ranks 0, 2 wait in all_reduce #1 of 4 f32");
  EXPECT_EQ(outcome_.aborted, std::vector<bool>({true, false, true}));
}

TEST_P(LedgerFault, ARankThatHasReturnedIsNamed) {
  for (const int early_ms : {0, 30}) {  // it returns before and after the others wait for it
    const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream& stream) {
      comm.AllReduce(Flat(4), stream);
      stream.Synchronize();
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(early_ms));
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(30 - early_ms));
      comm.AllReduce(Flat(5), stream);
      stream.Synchronize();
    });
    EXPECT_EQ(reason, "comm: rank 1 has returned; rank 0 waits in all_reduce #2 of 5 f32");
  }
}

TEST_P(LedgerFault, ARankThatHasReturnedIsNamedInAHostCall) {
  const std::string reason = ReasonOf(2, [&](Communicator& comm, Stream&) {
    if (comm.rank() == 0) comm.AllGatherBytes("anybody?");
  });
  EXPECT_EQ(reason, "comm: rank 1 has returned; rank 0 waits in all_gather_bytes #1");
}

TEST_P(LedgerFault, ASilentRankIsNamedAfterTheTimeLimit) {
  Gate gate;
  std::atomic<int> ended{0};
  const std::string reason = ReasonOf(
      4,
      [&](Communicator& comm, Stream& stream) {
        for (int i = 0; i < 6; ++i) comm.AllReduce(Flat(4), stream);
        stream.Synchronize();
        if (comm.rank() == 2) gate.Wait();
        try {
          comm.AllGather(Flat(1024), Flat(4096), stream);
          stream.Synchronize();
        } catch (...) {
          if (++ended == 3) gate.Open();
          throw;
        }
      },
      5, 0.3);
  EXPECT_EQ(reason, "comm: no sign of rank 2 for 0.3 s; ranks 0, 1, 3 wait in all_gather #7 of 1024 f32");
  EXPECT_THAT(outcome_.aborted, Each(true));
}

TEST_P(LedgerFault, ARankThatNeverStartsIsNamedInTheFirstCall) {
  const std::string reason = ReasonOf(
      4, [&](Communicator& comm, Stream&) { comm.Barrier(); }, 5, 0.3, 2);
  EXPECT_EQ(reason, "comm: no sign of rank 2 for 0.3 s; ranks 0, 1, 3 wait in barrier #1");
}

TEST_P(LedgerFault, RanksThatWaitForEachOtherAreAllNamed) {
  // Two groups, entered in another order by each rank: nothing is wrong within either.
  const std::string reason = ReasonOf(
      2,
      [&](Communicator& comm, Stream& stream) {
        const std::unique_ptr<Communicator> a = comm.Split(0, comm.rank()), b = comm.Split(0, comm.rank());
        Communicator& first = comm.rank() == 0 ? *a : *b;
        first.AllReduce(Flat(3 + comm.rank()), stream);
        stream.Synchronize();
      },
      5, 0.3);
  EXPECT_THAT(reason, HasSubstr("no sign of rank "));
  EXPECT_THAT(reason, HasSubstr("rank 0 waits in all_reduce #1 of 3 f32"));
  EXPECT_THAT(reason, HasSubstr("rank 1 waits in all_reduce #1 of 4 f32"));
}

TEST_P(LedgerFault, AFaultInAPartEndsTheWholeAndNamesRanksOfTheWhole) {
  const std::string reason = ReasonOf(4, [&](Communicator& comm, Stream& stream) {
    const std::unique_ptr<Communicator> part = comm.Split(comm.rank() % 2, comm.rank());
    if (comm.rank() % 2 == 1) {
      part->AllReduce(Flat(comm.rank()), stream);
    } else {
      comm.Barrier();
    }
    stream.Synchronize();
  });
  EXPECT_THAT(reason, StartsWith("comm: in the group of ranks 1, 3: collective #1: "));
  EXPECT_THAT(reason, HasSubstr("rank 1 calls all_reduce of 1 f32"));
  EXPECT_THAT(reason, HasSubstr("rank 3 calls all_reduce of 3 f32"));
  EXPECT_THAT(outcome_.aborted, Each(true));
}

TEST_P(LedgerFault, AFaultInTheWholeReachesAPart) {
  const std::string reason = ReasonOf(3, [&](Communicator& comm, Stream& stream) {
    const std::unique_ptr<Communicator> part = comm.Split(comm.rank() == 2, comm.rank());
    if (comm.rank() == 2) throw Error("gone");
    if (comm.rank() == 1) comm.Barrier();
    part->AllReduce(Flat(2), stream);
    stream.Synchronize();
  });
  EXPECT_THAT(reason, StartsWith("comm: rank 2 failed: gone"));
  EXPECT_EQ(outcome_.aborted, std::vector<bool>({true, true, false}));
}

// A short program with every kind of call; it checks what it gets, so that a wrong result is an error too.
void Program(Communicator& comm, Stream& stream) {
  const int n = comm.size(), r = comm.rank();
  const Tensor sum = Full({6}, DType::kF32, r), all = Flat(6 * n), part = Flat(6), received = Flat(6 * n);
  comm.AllReduce(sum, stream);
  comm.AllGather(sum, all, stream);
  comm.Barrier();
  comm.ReduceScatter(all, part, stream);
  comm.AllToAll(all, received, stream);
  comm.AllGatherBytes("x");
  comm.Broadcast(part, n - 1, stream);
  stream.Synchronize();
  const double total = n * (n - 1) / 2.0;
  if (sum.At(0) != total || all.At(0) != total || part.At(5) != n * total || received.At(0) != total) {
    throw Error("a wrong result");
  }
}
constexpr int64_t kProgramCalls = 7;

TEST_P(LedgerFault, AnyFaultAtAnyCallEndsEveryRankInTime) {
  for (int64_t at = 1; at <= kProgramCalls; ++at) {
    for (const Fault fault : {Fault::kThrow, Fault::kSkip, Fault::kOtherCount, Fault::kFlipBit, Fault::kNone}) {
      const bool host = at == 3 || at == 6;
      if (host && fault == Fault::kOtherCount) continue;
      if (at == 3 && fault == Fault::kFlipBit) continue;
      const Quick quick;
      World world({.size = 3, .ledger = true, .stream = GetParam()});
      std::atomic<int64_t> calls{0};
      const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
        FaultInjector faulty(comm.Split(0, comm.rank()), {comm.rank() == 1 ? fault : Fault::kNone, at});
        Program(faulty, stream);
        calls = faulty.calls();
      });
      const std::string what = Str("fault ", static_cast<int>(fault), " at call ", at);
      if (fault == Fault::kNone) {
        EXPECT_EQ(outcome.errors, std::vector<std::string>(3)) << what;
        EXPECT_EQ(calls, kProgramCalls);
      } else if (fault == Fault::kFlipBit) {
        continue;  // no fault of the calls; the program finds those that it looks at
      } else {
        for (int rank = 0; rank < 3; ++rank) {  // who skips the last call may well return content
          const bool content = rank == 1 && fault == Fault::kSkip && at == kProgramCalls;
          EXPECT_EQ(outcome.errors[static_cast<size_t>(rank)].empty(), content) << what << ", rank " << rank;
        }
        EXPECT_FALSE(world.board().failure().empty()) << what;
      }
    }
  }
}

TEST_P(LedgerFault, AFlippedBitIsSeenByItsRankAlone) {
  World world({.size = 2, .ledger = true, .stream = GetParam()});
  std::vector<double> sums(2);
  const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
    FaultInjector faulty(comm.Split(0, comm.rank()), {comm.rank() == 1 ? Fault::kFlipBit : Fault::kNone, 2});
    const Tensor x = Full({4}, DType::kU8, 6);
    faulty.Barrier();
    faulty.Broadcast(x, 0, stream);
    stream.Synchronize();
    sums[static_cast<size_t>(comm.rank())] = x.At(0);
  });
  EXPECT_EQ(outcome.errors, std::vector<std::string>(2));
  EXPECT_EQ(sums, std::vector<double>({6, 7}));
}

TEST_P(LedgerFault, ASleepThatEndsInTimeDoesNoHarm) {
  auto gate = std::make_shared<Gate>();
  World world({.size = 2, .ledger = true, .stream = GetParam()});
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate->Open();
  });
  const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
    FaultInjector faulty(comm.Split(0, 0), {comm.rank() == 1 ? Fault::kSleep : Fault::kNone, 4}, gate);
    Program(faulty, stream);
  });
  opener.join();
  EXPECT_EQ(outcome.errors, std::vector<std::string>(2));
}

INSTANTIATE_TEST_SUITE_P(Streams, LedgerFault, ::testing::Values(StreamKind::kInline, StreamKind::kWorker),
                         [](const auto& info) { return info.param == StreamKind::kInline ? "Inline" : "Worker"; });

// ---- thread ranks without a ledger -----------------------------------------------------------------------------------

TEST(ThreadGroupFault, ADifferentCallIsNamedBeforeMemoryIsTouched) {
  const Quick quick;
  World world({.size = 3});
  const Outcome outcome = world.OnRanks([](Communicator& comm, Stream& stream) {
    const Tensor x = Full({comm.rank() == 1 ? 100'000 : 5}, DType::kF32, 1);
    try {
      comm.AllReduce(x, stream);
    } catch (const AbortedError&) {
      EXPECT_THAT(x.ToVector(), Each(1.0));
      throw;
    }
  });
  for (const std::string& error : outcome.errors) {
    EXPECT_THAT(error, StartsWith("comm: rank "));
    EXPECT_THAT(error, HasSubstr("rank 1 calls all_reduce of 100000 f32"));
  }
}

TEST(ThreadGroupFault, ASilentRankIsNamedAfterTheTimeLimit) {
  const Quick quick(5);
  World world({.size = 3, .timeout_s = 0.3});
  const Outcome outcome = world.OnRanks([](Communicator& comm, Stream&) { comm.Barrier(); }, 1);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(outcome.errors[static_cast<size_t>(rank)],
                AnyOf("comm: no sign of rank 1 for 0.3 s; rank 0 waits in barrier",
                      "comm: no sign of rank 1 for 0.3 s; rank 2 waits in barrier"));
  }
}

// A rank that an abort drives out of a call may write to its tensors at once. The others may be in the midst of reading
// them; the buffers are large, so that some are. The thread sanitizer is the judge.
TEST(ThreadGroupFault, MemoryThatPeersReadIsNotTheirOwnersUntilTheyHaveReadIt) {
  for (int turn = 0; turn < 40; ++turn) {
    World world({.size = 3, .ledger = turn % 2 == 1});
    std::atomic<bool> started{false};
    std::thread aborter([&] {
      while (!started) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(500 + turn * 100));
      world.group().Abort("enough");
    });
    const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) {
      const Tensor one = Flat(300'000), all = Flat(900'000), x = Flat(900'000, DType::kBF16);
      try {
        while (true) {
          started = true;
          comm.AllGather(one, all, stream);
          comm.AllReduce(x, stream);
          comm.ReduceScatter(all, one, stream);
          comm.AllToAll(all, Flat(900'000), stream);
        }
      } catch (const AbortedError&) {
        for (const Tensor& mine : {one, all, x}) std::memset(mine.Write().data, 1, static_cast<size_t>(mine.bytes()));
        throw;
      }
    });
    aborter.join();
    EXPECT_THAT(outcome.errors, Each(HasSubstr("enough")));
  }
}

TEST(ThreadGroupFault, ARankClaimedTwiceOrOutsideIsRefused) {
  const auto refusal = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  ThreadGroup group(4);
  const auto first = group.Rank(1);
  EXPECT_EQ(refusal([&] { group.Rank(1); }), "thread_group: rank 1 was claimed twice");
  EXPECT_EQ(refusal([&] { group.Rank(4); }), "thread_group: rank 4 is outside a group of 4");
  EXPECT_EQ(refusal([&] { group.Rank(-1); }), "thread_group: rank -1 is outside a group of 4");
  EXPECT_EQ(refusal([&] { ThreadGroup none(0); }), "thread_group: a group has at least one rank, not 0");
  EXPECT_EQ(refusal([&] { group.SetTimeout(0); }), "thread_group: the timeout must be above 0 s, not 0");

  // Two groups whose ranks meet on one board, as two processes would that were given the same number.
  ThreadGroup other(4);
  auto board = std::make_shared<ThreadBoard>(4);
  const Ledger ledger(group.Rank(2), board);
  EXPECT_EQ(refusal([&] { Ledger(other.Rank(2), board); }), "ledger: rank 2 was claimed twice");
  EXPECT_EQ(refusal([&] { Ledger(ThreadGroup(3).Rank(0), board); }),
            "ledger: the board is for 4 ranks, the group has 3");
}

}  // namespace
}  // namespace tessera::comm::testing
