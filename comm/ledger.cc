// SPDX-License-Identifier: Apache-2.0
#include "comm/ledger.h"

#include <mutex>
#include <thread>
#include <utility>

namespace tessera::comm {

std::string Ticket::ToString() const {
  const std::string text = call.ToString();
  const std::string_view name = Name(call.op);
  return Str(name, " #", number, std::string_view(text).substr(name.size()));
}

namespace {

int64_t ElementsSent(const Call& call, int rank, int size) {
  switch (call.op) {
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return call.count * (size - 1);
    case Op::kBroadcast:
      return rank == call.root ? call.count * (size - 1) : 0;
    case Op::kAllReduce: {
      const int64_t own = PieceOf(call.count, rank, size).count;
      return call.count - own + own * (size - 1);
    }
    case Op::kAllGatherBytes:
    case Op::kBarrier:
    case Op::kSplit:
      return 0;
  }
  return 0;
}

}  // namespace

struct Ledger::Core {
  Core(std::unique_ptr<Communicator> the_base, std::shared_ptr<LedgerBoard> the_board, int the_name)
      : base(std::move(the_base)), board(std::move(the_board)), rank(base->rank()), name(the_name) {
    if (board->size() != base->size()) {
      throw Error(Str("ledger: the board is for ", board->size(), " ranks, the group has ", base->size()));
    }
    board->Join(rank, name, base.get());
  }
  ~Core() { board->Leave(rank); }

  // Numbers and counts a call. `bytes` is what all_gather_bytes sends to each rank.
  Ticket Issue(bool host, const Call& call, int64_t bytes) {
    board->ThrowIfFailed();
    Ticket ticket;
    {
      const std::lock_guard lock(mutex);
      const std::thread::id self = std::this_thread::get_id();
      if (stream_calls + host_calls == 0) caller = self;
      one_thread = one_thread && caller == self;
      uint64_t& own = host ? host_calls : stream_calls;
      ticket = {host, ++own, host ? stream_calls : host_calls, one_thread, call};
      const int64_t elements = ElementsSent(call, rank, base->size());
      const int64_t sent_bytes = bytes * (base->size() - 1);
      counters[call.purpose][call.op] += {1, elements + sent_bytes, elements * ItemSize(call.dtype) + sent_bytes};
    }
    board->Issue(rank, ticket);
    return ticket;
  }

  const std::unique_ptr<Communicator> base;
  const std::shared_ptr<LedgerBoard> board;
  const int rank, name;

  std::mutex mutex;
  Counters counters;
  uint64_t stream_calls = 0, host_calls = 0;
  std::thread::id caller;
  bool one_thread = true;
};

Ledger::Ledger(std::unique_ptr<Communicator> base, std::shared_ptr<LedgerBoard> board, int name)
    : core_(std::make_shared<Core>(std::move(base), std::move(board), name)) {}

Ledger::Ledger(std::unique_ptr<Communicator> base, std::shared_ptr<LedgerBoard> board) {
  const int name = base->rank();
  core_ = std::make_shared<Core>(std::move(base), std::move(board), name);
}

int Ledger::rank() const { return core_->rank; }
int Ledger::size() const { return core_->base->size(); }
bool Ledger::sums_in_rank_order() const { return core_->base->sums_in_rank_order(); }

template <class BaseCall>
void Ledger::Queue(Stream& stream, const Call& call, BaseCall base_call) {
  const Ticket ticket = core_->Issue(false, call, 0);
  stream.Run([core = core_, ticket] { core->board->Meet(core->rank, ticket); });
  base_call(*core_->base);
  // It also keeps the base alive, and so within reach of an abort, until the work is done.
  stream.Run([core = core_, ticket] { core->board->Done(core->rank, ticket); });
}

template <class BaseCall>
auto Ledger::OnHost(const Call& call, int64_t bytes, BaseCall base_call) {
  const Ticket ticket = core_->Issue(true, call, bytes);
  core_->board->Meet(core_->rank, ticket);
  auto result = base_call(*core_->base, ticket);
  core_->board->Done(core_->rank, ticket);
  return result;
}

void Ledger::AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options) {
  Queue(stream, CheckAllGather(rank(), size(), one, all, options),
        [&](Communicator& base) { base.AllGather(one, all, stream, options); });
}
void Ledger::ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options) {
  Queue(stream, CheckReduceScatter(rank(), size(), all, one, options),
        [&](Communicator& base) { base.ReduceScatter(all, one, stream, options); });
}
void Ledger::AllReduce(const Tensor& buffer, Stream& stream, const Options& options) {
  Queue(stream, CheckAllReduce(buffer, options), [&](Communicator& base) { base.AllReduce(buffer, stream, options); });
}
void Ledger::Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options) {
  Queue(stream, CheckBroadcast(size(), buffer, root, options),
        [&](Communicator& base) { base.Broadcast(buffer, root, stream, options); });
}
void Ledger::AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options) {
  Queue(stream, CheckAllToAll(size(), send, receive, options),
        [&](Communicator& base) { base.AllToAll(send, receive, stream, options); });
}

std::vector<std::string> Ledger::AllGatherBytes(std::string_view mine) {
  return OnHost({.op = Op::kAllGatherBytes}, static_cast<int64_t>(mine.size()),
                [&](Communicator& base, const Ticket&) { return base.AllGatherBytes(mine); });
}

void Ledger::Barrier() {
  // With everybody at the same call the barrier is passed already: the base has nothing to add.
  OnHost({.op = Op::kBarrier}, 0, [](Communicator&, const Ticket&) { return 0; });
}

std::unique_ptr<Communicator> Ledger::Split(int color, int key) {
  return OnHost({.op = Op::kSplit}, 0, [&](Communicator& base, const Ticket& ticket) {
    std::unique_ptr<Communicator> part = base.Split(color, key);
    std::shared_ptr<LedgerBoard> board = core_->board->Split(ticket.number, color, part->size());
    std::unique_ptr<Ledger> ledger(new Ledger(std::move(part), std::move(board), core_->name));
    ledger->core_->base->Barrier();  // all have joined the board, so that it can name them
    return std::unique_ptr<Communicator>(std::move(ledger));
  });
}

void Ledger::Abort(std::string_view reason) noexcept { core_->board->Fail(reason); }

Counters Ledger::counters() const {
  const std::lock_guard lock(core_->mutex);
  return core_->counters;
}
void Ledger::ResetCounters() {
  const std::lock_guard lock(core_->mutex);
  core_->counters = {};
}
std::string Ledger::Recent() const { return core_->board->Recent(core_->rank); }

}  // namespace tessera::comm
