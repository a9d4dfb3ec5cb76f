// SPDX-License-Identifier: Apache-2.0
// The contract of comm/communicator.h, held by every implementation on both kinds of stream.
#include "tests/comm/contract.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "comm/call.h"

namespace tessera::comm::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kU8};
constexpr int64_t kCounts[] = {0, 1, 7, 1024, 5003};
constexpr int64_t kManyCounts[] = {0, 1, 2, 3, 7, 64, 1023, 2048, 2049, 4097, 30011};

// Values that make the order of a sum visible: of very different sizes, with cancellation.
double Value(uint64_t seed, int rank, int64_t i) {
  uint64_t bits = (seed * 1000003 + static_cast<uint64_t>(rank)) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(i);
  for (int round = 0; round < 2; ++round) bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9u;
  const double size = static_cast<double>(uint64_t{1} << (bits >> 60)) / 16;
  return (static_cast<double>(bits >> 20 & 2047) - 1000) / 1000 * size;
}

// A flat tensor whose element i is Value(seed, rank, i) rounded to dtype (integers: whole numbers).
Tensor Filled(uint64_t seed, int rank, int64_t numel, DType dtype) {
  const Tensor result = EmptyOn(kCpu, {numel}, dtype);
  void* data = result.Write().data;
  for (int64_t i = 0; i < numel; ++i) {
    const double value = Value(seed, rank, i);
    switch (dtype) {
      case DType::kF32:
        static_cast<float*>(data)[i] = static_cast<float>(value);
        break;
      case DType::kBF16:
        static_cast<BFloat16*>(data)[i] = ToBFloat16(static_cast<float>(value));
        break;
      case DType::kF16:
        static_cast<Float16*>(data)[i] = ToFloat16(static_cast<float>(value));
        break;
      case DType::kF64:
        static_cast<double*>(data)[i] = value;
        break;
      case DType::kI32:
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value * 1000);
        break;
      case DType::kI64:
        static_cast<int64_t*>(data)[i] = static_cast<int64_t>(value * 1e12);
        break;
      case DType::kU8:
        static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(static_cast<int>(value * 10) & 255);
        break;
    }
  }
  return result;
}

std::string Bytes(const Tensor& tensor, int64_t first, int64_t count) {
  const int64_t item = ItemSize(tensor.dtype());
  if (count == 0) return {};
  return {reinterpret_cast<const char*>(ReadStart(tensor)) + first * item, static_cast<size_t>(count * item)};
}
std::string Bytes(const Tensor& tensor) { return Bytes(tensor, 0, tensor.numel()); }

Tensor Part(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.WithLayout(tensor.layout().Narrow(0, first, count));
}
Tensor Clone(const Tensor& tensor) { return CopyTo(tensor, tensor.dtype()); }

// The written rule, one element at a time: sums over ranks of element i of Filled(seed, rank, ...).
template <class T, class Sum, class Load, class Store>
void SumInto(Tensor& out, const std::vector<Tensor>& sources, int64_t first, Load load, Store store) {
  for (int64_t i = 0; i < out.numel(); ++i) {
    Sum sum = load(reinterpret_cast<const T*>(ReadStart(sources[0]))[first + i]);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      sum = sum + load(reinterpret_cast<const T*>(ReadStart(sources[rank]))[first + i]);
    }
    reinterpret_cast<T*>(WriteStart(out))[i] = store(sum);
  }
}
std::string ExpectedSum(uint64_t seed, int ranks, int64_t numel, DType dtype, int64_t first, int64_t count) {
  std::vector<Tensor> sources;
  for (int rank = 0; rank < ranks; ++rank) sources.push_back(Filled(seed, rank, numel, dtype));
  Tensor out = EmptyOn(kCpu, {count}, dtype);
  const auto same = [](auto x) { return x; };
  const auto up = [](auto x) { return ToFloat(x); };
  if (dtype == DType::kF32) SumInto<float, float>(out, sources, first, same, same);
  if (dtype == DType::kF64) SumInto<double, double>(out, sources, first, same, same);
  if (dtype == DType::kBF16) SumInto<BFloat16, float>(out, sources, first, up, [](float x) { return ToBFloat16(x); });
  if (dtype == DType::kF16) SumInto<Float16, float>(out, sources, first, up, [](float x) { return ToFloat16(x); });
  return Bytes(out);
}

class Contract : public ::testing::TestWithParam<WorldOptions> {
 protected:
  // Every rank of a fresh world runs `body` without an error.
  void EveryRank(World::Body body) {
    const Outcome outcome = OnContractWorld(GetParam(), body);
    EXPECT_EQ(outcome.errors, std::vector<std::string>(outcome.errors.size()));
  }
};

TEST_P(Contract, KnowsItsRankAndSize) {
  EveryRank([&](Communicator& comm, Stream&) {
    ASSERT_EQ(comm.size(), GetParam().size);
    EXPECT_TRUE(comm.sums_in_rank_order());
    const std::vector<std::string> ranks = comm.AllGatherBytes(std::to_string(comm.rank()));
    for (int p = 0; p < comm.size(); ++p) EXPECT_EQ(ranks[static_cast<size_t>(p)], std::to_string(p));
  });
}

TEST_P(Contract, AllGatherPutsThePiecesByRankAndTouchesNothingElse) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    for (const DType dtype : kAll) {
      for (const int64_t count : kCounts) {
        for (const int64_t gap : {0, 5}) {
          for (const bool in_place : {false, true}) {
            const int64_t step = count + gap, numel = (n - 1) * step + count;
            const Tensor all = Filled(99, r, numel, dtype), before = Clone(all);
            const Tensor mine = Filled(1, r, count, dtype);
            Tensor one = mine;
            if (in_place) {
              one = Part(all, r * step, count);
              if (count > 0) std::memcpy(WriteStart(one), ReadStart(mine), static_cast<size_t>(one.bytes()));
            }
            comm.AllGather(one, all, stream, {.pitch = gap == 0 ? 0 : step});
            stream.Synchronize();
            for (int p = 0; p < n; ++p) {
              ASSERT_EQ(Bytes(all, p * step, count), Bytes(Filled(1, p, count, dtype))) << Name(dtype) << count;
              const int64_t between = p < n - 1 ? gap : 0;
              ASSERT_EQ(Bytes(all, p * step + count, between), Bytes(before, p * step + count, between));
            }
            ASSERT_EQ(Bytes(one), Bytes(mine));
          }
        }
      }
    }
  });
}

TEST_P(Contract, ReduceScatterHasTheBitsOfTheSumInRankOrder) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    for (const DType dtype : kFloats) {
      for (const int64_t count : kCounts) {
        for (const int64_t gap : {0, 3}) {
          for (const bool in_place : {false, true}) {
            const int64_t step = count + gap, numel = (n - 1) * step + count;
            const Tensor all = Filled(2, r, numel, dtype), before = Clone(all);
            const Tensor one = in_place ? Part(all, r * step, count) : Filled(98, r, count, dtype);
            comm.ReduceScatter(all, one, stream, {.pitch = gap == 0 ? 0 : step});
            stream.Synchronize();
            ASSERT_EQ(Bytes(one), ExpectedSum(2, n, numel, dtype, r * step, count)) << Name(dtype) << " " << count;
            // All else of `all` is as it was.
            ASSERT_EQ(Bytes(all, 0, r * step), Bytes(before, 0, r * step));
            const int64_t after = r * step + count;
            ASSERT_EQ(Bytes(all, after, numel - after), Bytes(before, after, numel - after));
            ASSERT_TRUE(in_place || Bytes(all) == Bytes(before));
          }
        }
      }
    }
  });
}

TEST_P(Contract, AllReduceHasTheBitsOfReduceScatterThenAllGather) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    for (const DType dtype : kFloats) {
      for (const int64_t count : kManyCounts) {
        const Tensor sum = Filled(3, r, count, dtype);
        comm.AllReduce(sum, stream);
        stream.Synchronize();
        ASSERT_EQ(Bytes(sum), ExpectedSum(3, n, count, dtype, 0, count)) << Name(dtype) << " " << count;
        if (count % n != 0) continue;
        const Tensor all = Filled(3, r, count, dtype), one = EmptyOn(kCpu, {count / n}, dtype);
        comm.ReduceScatter(all, one, stream);
        comm.AllGather(one, all, stream);
        stream.Synchronize();
        ASSERT_EQ(Bytes(sum), Bytes(all)) << Name(dtype) << " " << count;
      }
    }
  });
}

TEST_P(Contract, SumsKeepInfinitiesNansAndMinusZero) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const bool last = comm.rank() == comm.size() - 1;
    const float inf = INFINITY;
    const Tensor x = Tensor::From<float>({-0.0f, last ? inf : 1.0f, last ? NAN : 1.0f, inf}, {4});
    comm.AllReduce(x, stream);
    stream.Synchronize();
    EXPECT_TRUE(x.At(0) == 0 && std::signbit(x.At(0)));
    EXPECT_EQ(x.At(1), inf);
    EXPECT_TRUE(std::isnan(x.At(2)));
    EXPECT_EQ(x.At(3), inf);
  });
}

TEST_P(Contract, BroadcastGivesEveryRankTheRootsBytes) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    for (const DType dtype : kAll) {
      for (const int64_t count : kCounts) {
        for (int root = 0; root < comm.size(); ++root) {
          const Tensor x = Filled(4, comm.rank(), count, dtype);
          comm.Broadcast(x, root, stream);
          stream.Synchronize();
          ASSERT_EQ(Bytes(x), Bytes(Filled(4, root, count, dtype)));
        }
      }
    }
  });
}

TEST_P(Contract, AllToAllTransposesPieces) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    for (const DType dtype : kAll) {
      for (const int64_t count : kCounts) {
        for (const int64_t gap : {0, 9}) {
          const int64_t step = count + gap, numel = (n - 1) * step + count;
          const Tensor send = Filled(5, r, numel, dtype), before = Clone(send);
          const Tensor receive = EmptyOn(kCpu, {n * count}, dtype);
          comm.AllToAll(send, receive, stream, {.pitch = gap == 0 ? 0 : step});
          stream.Synchronize();
          for (int p = 0; p < n; ++p) {
            ASSERT_EQ(Bytes(receive, p * count, count), Bytes(Filled(5, p, numel, dtype), r * step, count));
          }
          ASSERT_EQ(Bytes(send), Bytes(before));
        }
      }
    }
  });
}

TEST_P(Contract, AllGatherBytesReturnsWhatEachRankPassed) {
  const auto text = [](int rank, int turn) {
    return std::string(static_cast<size_t>(rank * 7 + turn * 100) % 1500, static_cast<char>(rank)) + "\0x";
  };
  EveryRank([&](Communicator& comm, Stream&) {
    for (int turn = 0; turn < 40; ++turn) {
      const std::vector<std::string> all = comm.AllGatherBytes(text(comm.rank(), turn));
      ASSERT_EQ(all.size(), static_cast<size_t>(comm.size()));
      for (int p = 0; p < comm.size(); ++p) ASSERT_EQ(all[static_cast<size_t>(p)], text(p, turn));
    }
  });
}

TEST_P(Contract, BarrierHoldsUntilAllHaveCome) {
  using Clock = std::chrono::steady_clock;  // one for all processes of a host
  struct Times {
    Clock::time_point came, left;
  };
  EveryRank([&](Communicator& comm, Stream&) {
    for (int turn = 0; turn < 50; ++turn) {
      Times mine;
      mine.came = Clock::now();
      comm.Barrier();
      mine.left = Clock::now();
      for (const std::string& text : comm.AllGatherBytes({reinterpret_cast<const char*>(&mine), sizeof mine})) {
        Times theirs;
        std::memcpy(&theirs, text.data(), sizeof theirs);
        ASSERT_LE(theirs.came, mine.left);
      }
    }
  });
}

TEST_P(Contract, SplitOrdersByKeyAndItsGroupsWorkApart) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    for (int turn = 0; turn < 3; ++turn) {
      const int colors = 1 + turn;
      const std::unique_ptr<Communicator> part = comm.Split(r % colors, -r);  // backwards
      std::vector<int> members;
      for (int p = n - 1; p >= 0; --p) {
        if (p % colors == r % colors) members.push_back(p);
      }
      ASSERT_EQ(part->size(), static_cast<int>(members.size()));
      ASSERT_EQ(members[static_cast<size_t>(part->rank())], r);
      const Tensor sum = Tensor::From<double>({static_cast<double>(r), 1}, {2});
      part->AllReduce(sum, stream);
      stream.Synchronize();
      ASSERT_EQ(sum.At(0), std::accumulate(members.begin(), members.end(), 0));
      ASSERT_EQ(sum.At(1), members.size());
      const std::vector<std::string> texts = part->AllGatherBytes(std::to_string(r));
      for (size_t p = 0; p < members.size(); ++p) ASSERT_EQ(texts[p], std::to_string(members[p]));
      const std::unique_ptr<Communicator> alone = part->Split(r, 0);
      ASSERT_EQ(alone->size(), 1);
      alone->Barrier();
    }
  });
}

// A host exchange between calls that are queued behind slow work must not wait for them.
TEST_P(Contract, HostExchangesPassCollectivesInFlight) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    std::atomic<bool> open{stream.kind() == StreamKind::kInline};
    stream.Run([&open] {
      while (!open) std::this_thread::yield();
    });
    const Tensor x = Tensor::From<double>({1}, {1});
    for (int turn = 0; turn < 20; ++turn) {
      comm.AllReduce(x, stream);
      comm.AllGatherBytes("x");
    }
    open = true;
    stream.Synchronize();
    EXPECT_EQ(x.At(0), std::pow(comm.size(), 20));
  });
}

// Each rank's streams come to the calls in another order; the order of the calls is the same.
TEST_P(Contract, CallsOnSeveralStreamsFindTheirPeers) {
  EveryRank([&](Communicator& comm, Stream&) {
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<Tensor> sums;
    for (int i = 0; i < 3; ++i) streams.push_back(std::make_unique<Stream>(GetParam().stream));
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    for (int turn = 0; turn < 60; ++turn) {
      Stream& stream = *streams[static_cast<size_t>(turn % 3)];
      const int delay_us = static_cast<int>(random() % 50);
      stream.Run([delay_us] { std::this_thread::sleep_for(std::chrono::microseconds(delay_us)); });
      sums.push_back(Tensor::From<float>({static_cast<float>(turn), 1}, {2}));
      comm.AllReduce(sums.back(), stream);
    }
    for (const auto& stream : streams) stream->Synchronize();
    for (size_t turn = 0; turn < sums.size(); ++turn) {
      ASSERT_EQ(sums[turn].At(0), static_cast<double>(turn) * comm.size());
    }
  });
}

// A worker may make the calls itself. Then the order between its calls and the host's is nobody's, and not a fault.
TEST_P(Contract, CallsMadeByAWorkerDoNotDisturbHostExchanges) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    Stream side(StreamKind::kWorker);
    const Tensor x = Tensor::From<double>({1}, {1});
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    for (int turn = 0; turn < 30; ++turn) {
      const int delay_us = static_cast<int>(random() % 100);
      side.Run([&, delay_us] {
        std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
        Stream at_once(StreamKind::kInline);
        comm.AllReduce(x, at_once);
      });
      if (turn % 3 == 0) comm.AllGatherBytes("x");
    }
    side.Synchronize();
    stream.Synchronize();
    EXPECT_EQ(x.At(0), std::pow(comm.size(), 30));
  });
}

TEST_P(Contract, QueuedCallsOutliveTheirTensorsAndTheirCommunicator) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    Tensor kept;
    {
      std::unique_ptr<Communicator> part = comm.Split(0, comm.rank());
      const Tensor one = Filled(6, comm.rank(), 1000, DType::kF32);
      kept = EmptyOn(kCpu, {1000 * comm.size()}, DType::kF32);
      part->AllGather(one, kept, stream);
    }
    stream.Synchronize();
    for (int p = 0; p < comm.size(); ++p) {
      ASSERT_EQ(Bytes(kept, p * 1000, 1000), Bytes(Filled(6, p, 1000, DType::kF32)));
    }
  });
}

// Random sequences of everything, the same on all ranks, checked against the written meaning.
TEST_P(Contract, RandomSequencesGiveWhatTheContractSays) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    std::mt19937 random(7);  // the same choices on every rank
    for (uint64_t turn = 0; turn < 150; ++turn) {
      const DType dtype = kFloats[random() % 4];
      const int64_t count = static_cast<int64_t>(random() % (random() % 4 == 0 ? 4000 : 40));
      const int64_t gap = static_cast<int64_t>(random() % 3), step = count + gap;
      const int64_t numel = (n - 1) * step + count;
      const Options options{.pitch = gap == 0 ? 0 : step, .purpose = static_cast<Purpose>(random() % 3)};
      const int root = static_cast<int>(random() % static_cast<unsigned>(n));
      switch (random() % 7) {
        case 0: {
          const Tensor all = EmptyOn(kCpu, {numel}, dtype);
          comm.AllGather(Filled(turn, r, count, dtype), all, stream, options);
          stream.Synchronize();
          for (int p = 0; p < n; ++p) {
            ASSERT_EQ(Bytes(all, p * step, count), Bytes(Filled(turn, p, count, dtype)));
          }
          break;
        }
        case 1: {
          const Tensor one = EmptyOn(kCpu, {count}, dtype);
          comm.ReduceScatter(Filled(turn, r, numel, dtype), one, stream, options);
          stream.Synchronize();
          ASSERT_EQ(Bytes(one), ExpectedSum(turn, n, numel, dtype, r * step, count));
          break;
        }
        case 2: {
          const Tensor x = Filled(turn, r, count, dtype);
          comm.AllReduce(x, stream, {.purpose = options.purpose});
          stream.Synchronize();
          ASSERT_EQ(Bytes(x), ExpectedSum(turn, n, count, dtype, 0, count));
          break;
        }
        case 3: {
          const Tensor x = Filled(turn, r, count, dtype);
          comm.Broadcast(x, root, stream);
          stream.Synchronize();
          ASSERT_EQ(Bytes(x), Bytes(Filled(turn, root, count, dtype)));
          break;
        }
        case 4: {
          const Tensor receive = EmptyOn(kCpu, {n * count}, dtype);
          comm.AllToAll(Filled(turn, r, numel, dtype), receive, stream, options);
          stream.Synchronize();
          for (int p = 0; p < n; ++p) {
            ASSERT_EQ(Bytes(receive, p * count, count), Bytes(Filled(turn, p, numel, dtype), r * step, count));
          }
          break;
        }
        case 5:
          ASSERT_EQ(comm.AllGatherBytes(std::to_string(r))[static_cast<size_t>(root)], std::to_string(root));
          break;
        default:
          comm.Barrier();
      }
    }
  });
}

TEST_P(Contract, RefusesWhatIsNotLegalBeforeAnythingIsSent) {
  EveryRank([&](Communicator& comm, Stream& stream) {
    const int n = comm.size(), r = comm.rank();
    const auto refusal = [](auto&& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "nothing was thrown";
    };
    const Tensor one = Zeros({4}, DType::kF32), all = Zeros({4 * n}, DType::kF32);
    const Tensor whole = Zeros({4 * n + 1}, DType::kF32), ints = Zeros({4}, DType::kI32);
    EXPECT_EQ(refusal([&] { comm.AllGather(one, whole, stream); }),
              Str("all_gather: all has ", 4 * n + 1, " elements, ", n, " pieces of 4 with pitch 4 take ", 4 * n));
    EXPECT_EQ(refusal([&] { comm.ReduceScatter(all, one, stream, {.pitch = 3}); }),
              "reduce_scatter: pitch 3 is less than the 4 elements of a piece");
    EXPECT_EQ(refusal([&] { comm.AllReduce(ints, stream); }), "all_reduce: sums need a floating dtype, got i32");
    EXPECT_EQ(refusal([&] { comm.AllReduce(one, stream, {.pitch = 4}); }),
              "all_reduce: has no pieces, so pitch must be 0, not 4");
    EXPECT_EQ(refusal([&] { comm.Broadcast(one, n, stream); }),
              Str("broadcast: root ", n, " is outside a group of ", n));
    EXPECT_EQ(refusal([&] { comm.AllGather(ints, all, stream); }), "all_gather: dtypes differ: i32, f32");
    EXPECT_EQ(refusal([&] {
                comm.AllGather(Zeros({2, 2}, DType::kF32), all, stream);
              }),
              "all_gather: one has shape (2, 2) strides (2, 1) offset 0, expected a contiguous tensor of rank 1");
    EXPECT_EQ(refusal([&] { comm.AllReduce(Tensor(), stream); }), "all_reduce: buffer is undefined");
    EXPECT_EQ(refusal([&] { comm.AllGather(Part(whole, r * 4 + 1, 4), Part(whole, 0, 4 * n), stream); }),
              Str("all_gather: one shares memory with the piece of rank ", r, " in all"));
    EXPECT_EQ(refusal([&] { comm.AllToAll(all, all, stream); }),
              "all_to_all: receive shares memory with the piece of rank 0 in send");
    comm.Barrier();  // nobody has lost count
  });
}

TEST_P(Contract, AnAbortReachesPendingAndLaterCalls) {
  const Outcome outcome = OnContractWorld(GetParam(), [&](Communicator& comm, Stream& stream) {
    const Tensor x = Zeros({4}, DType::kF32);
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      comm.Abort("the reason");
      comm.Abort("another one");
    } else {
      try {
        comm.AllReduce(x, stream);
        stream.Synchronize();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const AbortedError& error) {
        EXPECT_STREQ(error.what(), "the reason");
      }
    }
    for (int turn = 0; turn < 3; ++turn) {
      EXPECT_THROW(comm.AllReduce(x, stream), AbortedError);
      EXPECT_THROW(comm.Barrier(), AbortedError);
      EXPECT_THROW(comm.AllGatherBytes("x"), AbortedError);
      EXPECT_THROW(comm.Split(0, 0), AbortedError);
    }
    throw AbortedError("done");
  });
  for (const std::string& error : outcome.errors) EXPECT_EQ(error, "done");
}

std::string NameOf(const ::testing::TestParamInfo<WorldOptions>& info) { return ContractWorldName(info.param); }

INSTANTIATE_TEST_SUITE_P(Worlds, Contract, ::testing::ValuesIn(ContractWorlds()), NameOf);

}  // namespace
}  // namespace tessera::comm::testing
