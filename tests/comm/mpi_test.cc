// SPDX-License-Identifier: Apache-2.0
// Processes that do not do the same: each learns why, before the wrong collective has touched memory.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/mpi_group.h"
#include "tests/comm/contract.h"

namespace tessera::comm::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Tensor Flat(int64_t numel, DType dtype = DType::kF32) { return Zeros({numel}, dtype); }

class MpiFault : public ::testing::TestWithParam<StreamKind> {
 protected:
  // Each process says what its ledger threw; all are to be AbortedErrors but where a test says otherwise.
  Outcome OutcomeOf(int size, World::Body body, double timeout_s = 30) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome =
        OnContractWorld({.size = size, .ledger = true, .stream = GetParam(), .timeout_s = timeout_s}, body);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
    return outcome;
  }
};

TEST_P(MpiFault, ADifferentCountIsNamedBeforeMemoryIsTouched) {
  Tensor buffer;
  const Outcome outcome = OutcomeOf(3, [&](Communicator& comm, Stream& stream) {
    for (int i = 0; i < 11; ++i) comm.AllReduce(Flat(4), stream);
    buffer = Full({comm.rank() == 1 ? 20000 : 100}, DType::kF32, 3);
    comm.AllReduce(buffer, stream);
    stream.Synchronize();
  });
  EXPECT_THAT(outcome.aborted, Each(true));
  for (const std::string& error : outcome.errors) {
    EXPECT_THAT(error, StartsWith("comm: collective #12: rank "));
    EXPECT_THAT(error, HasSubstr("rank 1 calls all_reduce of 20000 f32"));
    EXPECT_THAT(error, HasSubstr("calls all_reduce of 100 f32"));
  }
  if (buffer.defined()) {
    EXPECT_THAT(buffer.ToVector(), Each(3.0));
  }
}

TEST_P(MpiFault, AHostCallAgainstACollectiveIsNamed) {
  const Outcome outcome = OutcomeOf(2, [&](Communicator& comm, Stream& stream) {
    comm.AllReduce(Flat(4), stream);
    comm.Barrier();
    if (comm.rank() == 0) {
      comm.Barrier();
    } else {
      comm.AllReduce(Flat(9), stream);
      stream.Synchronize();
    }
  });
  EXPECT_THAT(outcome.errors, Each(AnyOf("comm: rank 0 calls barrier #2 where rank 1 calls all_reduce #2 of 9 f32",
                                         "comm: rank 1 calls all_reduce #2 of 9 f32 where rank 0 calls barrier #2")));
}

TEST_P(MpiFault, AnExceptionOfOneRankEndsTheOthersWithItsFirstLine) {
  const Outcome outcome = OutcomeOf(4, [&](Communicator& comm, Stream& stream) {
    comm.Barrier();
    if (comm.rank() == 1) throw Error("out of luck\nsecond line");
    comm.AllReduce(Flat(4), stream);
    stream.Synchronize();
  });
  for (int rank : {0, 2, 3}) {
    EXPECT_EQ(outcome.errors[static_cast<size_t>(rank)], "comm: rank 1 failed: out of luck");
  }
  EXPECT_EQ(outcome.aborted, std::vector<bool>({true, false, true, true}));
}

TEST_P(MpiFault, ARankThatHasReturnedIsNamed) {
  for (const bool early : {true, false}) {  // before the other waits for it, and after
    const Outcome outcome = OutcomeOf(2, [&](Communicator& comm, Stream& stream) {
      comm.AllReduce(Flat(4), stream);
      stream.Synchronize();
      if ((comm.rank() == 0) == early) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (comm.rank() == 1) return;
      comm.AllReduce(Flat(5), stream);
      stream.Synchronize();
    });
    EXPECT_EQ(outcome.errors[0], "comm: rank 1 has returned; rank 0 waits in all_reduce #2 of 5 f32");
    EXPECT_EQ(outcome.errors[1], "");
  }
}

TEST_P(MpiFault, ASilentRankIsNamedAfterTheTimeLimit) {
  if (GetParam() == StreamKind::kWorker) GTEST_SKIP() << "takes seconds, and the board does not know streams";
  const Outcome outcome = OutcomeOf(
      4,
      [&](Communicator& comm, Stream& stream) {
        for (int i = 0; i < 6; ++i) comm.AllReduce(Flat(4), stream);
        stream.Synchronize();
        if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(4));
        comm.AllGather(Flat(1024), Flat(4096), stream);
        stream.Synchronize();
      },
      2);
  EXPECT_THAT(outcome.aborted, Each(true));
  // Whoever's patience ends first says so; the others may not have come to the call before that.
  EXPECT_THAT(outcome.errors, Each(StartsWith("comm: no sign of rank")));
  EXPECT_THAT(outcome.errors, Each(HasSubstr("2 for 2.0 s; rank")));
  EXPECT_THAT(outcome.errors, Each(HasSubstr("in all_gather #7 of 1024 f32")));
}

TEST_P(MpiFault, AFaultInAPartEndsTheWholeAndNamesRanksOfTheWhole) {
  const Outcome outcome = OutcomeOf(4, [&](Communicator& comm, Stream& stream) {
    const std::unique_ptr<Communicator> part = comm.Split(comm.rank() % 2 - 1, comm.rank());  // -1 is a color too
    if (comm.rank() % 2 == 1) {
      part->AllReduce(Flat(comm.rank()), stream);
    } else {
      comm.Barrier();
    }
    stream.Synchronize();
  });
  EXPECT_THAT(outcome.aborted, Each(true));
  EXPECT_THAT(outcome.errors, Each(StartsWith("comm: in the group of ranks 1, 3: collective #1: ")));
  EXPECT_THAT(outcome.errors, Each(HasSubstr("rank 1 calls all_reduce of 1 f32")));
  EXPECT_THAT(outcome.errors, Each(HasSubstr("rank 3 calls all_reduce of 3 f32")));
}

INSTANTIATE_TEST_SUITE_P(Streams, MpiFault, ::testing::Values(StreamKind::kInline, StreamKind::kWorker),
                         [](const auto& info) { return info.param == StreamKind::kInline ? "Inline" : "Worker"; });

TEST(MpiGroup, WithoutALedgerAnotherCountIsFoundByItsBytes) {
  const Outcome outcome = OnContractWorld({.size = 2}, [](Communicator& comm, Stream& stream) {
    comm.AllReduce(Flat(comm.rank() == 0 ? 100 : 101), stream);
    comm.Barrier();
  });
  EXPECT_THAT(outcome.errors, Each(HasSubstr("all_reduce of 10")));
}

TEST(MpiGroup, ItsRecentCallsAreThoseOfThisProcess) {
  const Outcome outcome = OnContractWorld({.size = 2, .ledger = true}, [](Communicator& comm, Stream& stream) {
    comm.AllReduce(Flat(4), stream);
    comm.Split(0, comm.rank())->Barrier();
    const std::string name = Str("rank ", comm.rank());
    EXPECT_EQ(dynamic_cast<Ledger&>(comm).Recent(),
              Str(name, ": all_reduce #1 of 4 f32 (done)\n", name, ": split #1 (done)\n", name,
                  ": barrier #1 in the group of ranks 0, 1 (done)\n"));
  });
  EXPECT_THAT(outcome.errors, Each(""));
}

// What MPI counts with an int.
TEST(Large, ABufferOfMoreThan2To31BytesArrives) {
  const int64_t numel = (int64_t{1} << 31) + 4097;
  const Outcome outcome = OnContractWorld({.size = 2, .ledger = true}, [&](Communicator& comm, Stream& stream) {
    const Tensor x = EmptyOn(kCpu, {numel}, DType::kU8);
    auto* bytes = static_cast<uint8_t*>(x.Write().data);
    std::fill(bytes, bytes + numel, static_cast<uint8_t>(comm.rank() + 5));
    if (comm.rank() == 1) bytes[0] = bytes[int64_t{1} << 30] = bytes[numel - 1] = 9;
    comm.Broadcast(x, 1, stream);
    stream.Synchronize();
    EXPECT_EQ(bytes[0], 9);
    EXPECT_EQ(bytes[1], 6);
    EXPECT_EQ(bytes[int64_t{1} << 30], 9);
    EXPECT_EQ(bytes[numel - 2], 6);
    EXPECT_EQ(bytes[numel - 1], 9);
  });
  EXPECT_THAT(outcome.errors, Each(""));
}

}  // namespace
}  // namespace tessera::comm::testing
