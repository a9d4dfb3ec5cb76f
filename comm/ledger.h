// SPDX-License-Identifier: Apache-2.0
// A communicator that keeps book: every rank's collectives are numbered and compared with the other ranks' before they
// touch any memory, and counted. A rank that calls something else, has failed, has returned, or stays silent ends the
// group at once, with one line that names the ranks and the calls:
//
//   comm: collective #12: rank 1 calls all_reduce of 200 f32, rank 0 calls all_reduce of 100 f32
//
//   auto board = std::make_shared<ThreadBoard>(size);              // one for the group, see thread_board.h
//   Ledger comm(group.Rank(rank), board);
//   comm.AllGather(one, all, stream, {.purpose = Purpose::kParams});
//   comm.counters()[Purpose::kParams].total().elements
//
// What a rank sends, in elements, whatever the implementation does underneath (N ranks, `count` as in the contract):
//   all_gather, reduce_scatter, all_to_all   count * (N - 1)
//   broadcast                                count * (N - 1) at the root, 0 elsewhere
//   all_reduce                               count - own + own * (N - 1), where own = PieceOf(count, rank, N).count: the
//                                            others' pieces out, then the own sum to each; 2 * count * (N - 1) / N where
//                                            N divides count, and 2 * count * (N - 1) over all ranks in any case
//   all_gather_bytes                         its bytes * (N - 1), as control
// Counting happens when the call is made, in the calling thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"

namespace tessera::comm {

struct Traffic {
  int64_t calls = 0;
  int64_t elements = 0;  // sent by this rank
  int64_t bytes = 0;

  Traffic& operator+=(const Traffic& other) {
    calls += other.calls;
    elements += other.elements;
    bytes += other.bytes;
    return *this;
  }
  bool operator==(const Traffic&) const = default;
};

struct Counters {
  struct ByOp {
    std::array<Traffic, kOpCount> ops;
    const Traffic& operator[](Op op) const { return ops[static_cast<size_t>(op)]; }
    Traffic& operator[](Op op) { return ops[static_cast<size_t>(op)]; }
    Traffic total() const {
      Traffic sum;
      for (const Traffic& traffic : ops) sum += traffic;
      return sum;
    }
  };
  std::array<ByOp, kPurposeCount> purposes;
  const ByOp& operator[](Purpose purpose) const { return purposes[static_cast<size_t>(purpose)]; }
  ByOp& operator[](Purpose purpose) { return purposes[static_cast<size_t>(purpose)]; }
};

// A call with its place in the rank's order. Streams and the host have a sequence each, because they may be under way at
// the same time; both count from 1.
struct Ticket {
  bool host = false;
  uint64_t number = 0;
  uint64_t other_number = 0;  // how many calls of the other sequence came before
  bool one_thread = true;  // all calls of this rank came from one thread so far, so that other_number means something
  Call call;

  std::string ToString() const;  // "all_gather #7 of 1024 f32"
};

// What the ledgers of a group share. ThreadBoard is the one for threads.
class LedgerBoard {
 public:
  virtual ~LedgerBoard() = default;
  virtual int size() const = 0;
  // Claims `rank`, which messages call `name`. `base` is aborted with the group; borrowed until Leave. Throws when the
  // rank is claimed already.
  virtual void Join(int rank, int name, Communicator* base) = 0;
  virtual void Leave(int rank) noexcept = 0;
  virtual void ThrowIfFailed() = 0;

  virtual void Issue(int rank, const Ticket& ticket) = 0;  // the call was made
  // Where the call's work runs, before it: returns when every rank has come to the same call. Throws AbortedError.
  virtual void Meet(int rank, const Ticket& ticket) = 0;
  virtual void Done(int rank, const Ticket& ticket) = 0;  // after it

  // Ends the group, and those it was split from or into. The first reason counts.
  virtual void Fail(std::string_view reason) noexcept = 0;
  // The board of a group of `size` ranks that host call `number` has split off; the same for all of them.
  virtual std::shared_ptr<LedgerBoard> Split(uint64_t number, int color, int size) = 0;
  // The rank's last collectives, one line each, oldest first.
  virtual std::string Recent(int rank) const = 0;
};

class Ledger final : public Communicator {
 public:
  Ledger(std::unique_ptr<Communicator> base, std::shared_ptr<LedgerBoard> board);

  int rank() const override;
  int size() const override;
  bool sums_in_rank_order() const override;
  void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options = {}) override;
  void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options = {}) override;
  void AllReduce(const Tensor& buffer, Stream& stream, const Options& options = {}) override;
  void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options = {}) override;
  void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options = {}) override;
  std::vector<std::string> AllGatherBytes(std::string_view mine) override;
  void Barrier() override;
  std::unique_ptr<Communicator> Split(int color, int key) override;  // a Ledger with counters of its own
  void Abort(std::string_view reason) noexcept override;

  Counters counters() const;
  void ResetCounters();
  std::string Recent() const;  // for a dump after an error; ThreadBoard::Recent has all ranks'

 private:
  struct Core;  // shared with queued work, which may outlive the ledger
  Ledger(std::unique_ptr<Communicator> base, std::shared_ptr<LedgerBoard> board, int name);
  template <class BaseCall>
  void Queue(Stream& stream, const Call& call, BaseCall base_call);
  template <class BaseCall>
  auto OnHost(const Call& call, int64_t bytes, BaseCall base_call);

  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm
