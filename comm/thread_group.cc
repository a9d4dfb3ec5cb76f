// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "comm/call.h"
#include "comm/rank_order_sum.h"
#include "comm/seats.h"

namespace tessera::comm {
namespace {

// How many collectives of one group and one sequence may be in flight, on several streams, before one waits for another.
// That wait ends: a collective waits only for what every rank has called before it.
constexpr uint64_t kSlots = 8;
// A rank's epoch goes up by three in every collective: here, half way, done.
constexpr uint32_t kEpochs = 3;
// An AllReduce of no more bytes is summed whole by every rank, which saves one of three meetings.
constexpr int64_t kSmallBytes = 8192;

// What a rank shows the others in a collective.
struct alignas(64) Posted {
  Call call;
  const std::byte* data = nullptr;
  std::string text;
};

struct Slot {
  explicit Slot(int size) : seats(size), posted(static_cast<size_t>(size)) {}
  Seats seats;
  std::vector<Posted> posted;
};

struct Sequence {
  explicit Sequence(int size) {
    for (uint64_t i = 0; i < kSlots; ++i) slots.push_back(std::make_unique<Slot>(size));
  }
  std::vector<std::unique_ptr<Slot>> slots;
};

// A group and what was split off it.
struct Family {
  std::mutex mutex;
  std::vector<ThreadGroup::Impl*> groups;
  std::string reason;
  std::atomic<bool> aborted{false};
  std::atomic<double> timeout_s{600};

  void ThrowIfAborted() {
    if (!aborted.load()) return;
    const std::lock_guard lock(mutex);
    throw AbortedError(reason);
  }
  void Abort(std::string_view why) noexcept;
};

}  // namespace

struct ThreadGroup::Impl {
  Impl(std::shared_ptr<Family> the_family, std::vector<int> rank_names)
      : family(std::move(the_family)),
        names(std::move(rank_names)),
        size(static_cast<int>(names.size())),
        stream_calls(size),
        host_calls(size),
        taken(names.size()) {
    const std::lock_guard lock(family->mutex);
    family->groups.push_back(this);
    if (family->aborted) AbortSeats();
  }
  ~Impl() {
    const std::lock_guard lock(family->mutex);
    std::erase(family->groups, this);
  }

  void AbortSeats() noexcept {
    for (Sequence* sequence : {&stream_calls, &host_calls}) {
      for (const std::unique_ptr<Slot>& slot : sequence->slots) slot->seats.Abort();
    }
  }

  const std::shared_ptr<Family> family;
  const std::vector<int> names;  // the ranks' numbers in the group that all came from, for messages
  const int size;
  Sequence stream_calls, host_calls;

  std::mutex mutex;
  std::vector<bool> taken;
  // Groups that some of their ranks have yet to fetch, by the host call that made them and the color.
  struct Fresh {
    std::shared_ptr<Impl> group;
    int fetched = 0;
  };
  std::map<std::pair<uint64_t, int>, Fresh> fresh;
};

namespace {

using Group = ThreadGroup::Impl;

void Family::Abort(std::string_view why) noexcept {
  const std::lock_guard lock(mutex);
  if (aborted) return;
  reason = why;
  aborted = true;
  for (Group* group : groups) group->AbortSeats();
}

// One rank's way through one collective. Destroyed before Close or Leave (an error), it holds the rank's memory until
// nobody reads it any more.
class Visit {
 public:
  Visit(Group& group, Sequence& calls, uint64_t number, int rank, const Call& call)
      : group_(group),
        slot_(*calls.slots[number % kSlots]),
        epoch_(static_cast<uint32_t>(number / kSlots) * kEpochs),
        rank_(rank),
        call_(call) {
    Wait(epoch_);  // for the slot's collective before this one
  }
  ~Visit() {
    if (left_) return;
    group_.family->Abort(
        Str("comm: rank ", name(rank_), " left ", call_.ToString(), " half done"));  // if not yet aborted
    slot_.seats.EndReading(rank_);
    slot_.seats.WaitForReaders();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  // Shows `data`, meets the others, and finds out whether they call the same. From here the others' memory may be read.
  void Open(const std::byte* data) {
    Meet(data, {});
    BeginReading();
  }
  // The same for the host: `text` is the slot's own and stays until the slot's next collective, so Leave is enough.
  void Meet(const std::byte* data, std::string_view text) {
    Posted& mine = slot_.posted[static_cast<size_t>(rank_)];
    mine.call = call_;
    mine.data = data;
    mine.text = text;
    slot_.seats.Arrive(rank_, epoch_ + 1);
    Wait(epoch_ + 1);
    for (int other = 0; other < group_.size; ++other) {
      const Call& theirs = posted(other).call;
      if (theirs == call_) continue;
      group_.family->Abort(Str("comm: ", Disagreement(name(rank_), call_, name(other), theirs)));
      group_.family->ThrowIfAborted();
    }
  }
  // All have read what they wanted so far. Only after another Resume may the others' memory be read again.
  void Pass() {
    slot_.seats.EndReading(rank_);
    slot_.seats.Arrive(rank_, epoch_ + 2);
    Wait(epoch_ + 2);
  }
  void Resume() { BeginReading(); }
  // Nobody reads this rank's memory any more.
  void Close() {
    slot_.seats.EndReading(rank_);
    slot_.seats.Arrive(rank_, epoch_ + kEpochs);
    Wait(epoch_ + kEpochs);
    left_ = true;
  }
  // For a collective after whose last meeting only own memory was used.
  void Leave() {
    slot_.seats.Arrive(rank_, epoch_ + kEpochs);
    left_ = true;
  }

  const Posted& posted(int rank) const { return slot_.posted[static_cast<size_t>(rank)]; }

 private:
  int name(int rank) const { return group_.names[static_cast<size_t>(rank)]; }
  void BeginReading() {
    if (!slot_.seats.BeginReading(rank_)) group_.family->ThrowIfAborted();
  }
  void Wait(uint32_t epoch) {
    const double timeout_s = group_.family->timeout_s;
    const Seats::Outcome outcome = slot_.seats.WaitForAll(epoch, timeout_s);
    if (outcome == Seats::Outcome::kMet) return;
    if (outcome == Seats::Outcome::kTimedOut) {
      std::vector<int> missing;
      for (int rank = 0; rank < group_.size; ++rank) {
        if (!slot_.seats.HasArrived(rank, epoch)) missing.push_back(name(rank));
      }
      group_.family->Abort(
          Str("comm: ", NoSignOf(missing, timeout_s), "; rank ", name(rank_), " waits in ", call_.ToString()));
    }
    group_.family->ThrowIfAborted();
  }

  Group& group_;
  Slot& slot_;
  uint32_t epoch_;  // at the start of this collective
  int rank_;
  const Call& call_;
  bool left_ = false;
};

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options) override {
    const Call call = CheckAllGather(rank_, size(), one, all, options);
    const std::byte* source = ReadStart(one);
    std::byte* target = WriteStart(all);
    Queue(stream, call, one, all, [source, target](Group& group, Visit& visit, int, const Call& call) {
      visit.Open(source);
      const int64_t bytes = call.count * ItemSize(call.dtype);
      for (int peer = 0; peer < group.size; ++peer) {
        CopyBytes(target + peer * PieceStep(call), visit.posted(peer).data, bytes);
      }
      visit.Close();
    });
  }

  void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options) override {
    const Call call = CheckReduceScatter(rank_, size(), all, one, options);
    const std::byte* source = ReadStart(all);
    std::byte* target = WriteStart(one);
    Queue(stream, call, all, one, [source, target](Group& group, Visit& visit, int rank, const Call& call) {
      visit.Open(source);
      // In place this writes the rank's own piece, which the others do not read.
      SumPiece(group, visit, call, rank * PieceStep(call), call.count, target);
      visit.Close();
    });
  }

  void AllReduce(const Tensor& buffer, Stream& stream, const Options& options) override {
    const Call call = CheckAllReduce(buffer, options);
    std::byte* data = WriteStart(buffer);
    Queue(stream, call, buffer, buffer, [data](Group& group, Visit& visit, int rank, const Call& call) {
      const int64_t item = ItemSize(call.dtype), bytes = call.count * item;
      visit.Open(data);
      if (bytes <= kSmallBytes) {
        alignas(64) std::byte sum[kSmallBytes];
        SumPiece(group, visit, call, 0, call.count, sum);
        visit.Pass();
        CopyBytes(data, sum, bytes);
        return visit.Leave();
      }
      // Each rank sums its piece into its own buffer, where no other rank reads that piece before all have passed.
      const Piece mine = PieceOf(call.count, rank, group.size);
      SumPiece(group, visit, call, mine.begin * item, mine.count, data + mine.begin * item);
      visit.Pass();
      visit.Resume();
      for (int step = 1; step < group.size; ++step) {  // not all from the same rank at a time
        const int peer = (rank + step) % group.size;
        const Piece piece = PieceOf(call.count, peer, group.size);
        CopyBytes(data + piece.begin * item, visit.posted(peer).data + piece.begin * item, piece.count * item);
      }
      visit.Close();
    });
  }

  void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options) override {
    const Call call = CheckBroadcast(size(), buffer, root, options);
    std::byte* data = rank_ == root ? const_cast<std::byte*>(ReadStart(buffer)) : WriteStart(buffer);
    Queue(stream, call, buffer, buffer, [data](Group&, Visit& visit, int, const Call& call) {
      visit.Open(data);
      CopyBytes(data, visit.posted(call.root).data, call.count * ItemSize(call.dtype));
      visit.Close();
    });
  }

  void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options) override {
    const Call call = CheckAllToAll(size(), send, receive, options);
    const std::byte* source = ReadStart(send);
    std::byte* target = WriteStart(receive);
    Queue(stream, call, send, receive, [source, target](Group& group, Visit& visit, int rank, const Call& call) {
      visit.Open(source);
      const int64_t bytes = call.count * ItemSize(call.dtype);
      for (int step = 0; step < group.size; ++step) {
        const int peer = (rank + step) % group.size;
        CopyBytes(target + peer * bytes, visit.posted(peer).data + rank * PieceStep(call), bytes);
      }
      visit.Close();
    });
  }

  std::vector<std::string> AllGatherBytes(std::string_view mine) override {
    return Exchange({.op = Op::kAllGatherBytes}, mine);
  }
  void Barrier() override { Exchange({.op = Op::kBarrier}, {}); }
  std::unique_ptr<Communicator> Split(int color, int key) override;
  void Abort(std::string_view reason) noexcept override { group_->family->Abort(reason); }

 private:
  // Queues `body` as the next collective. The tensors are captured to keep their memory.
  template <class Body>
  void Queue(Stream& stream, const Call& call, const Tensor& read, const Tensor& written, Body body) {
    group_->family->ThrowIfAborted();
    stream.Run([group = group_, rank = rank_, number = stream_calls_++, call, read, written, body] {
      Visit visit(*group, group->stream_calls, number, rank, call);
      body(*group, visit, rank, call);
    });
  }

  static void SumPiece(const Group& group, const Visit& visit, const Call& call, int64_t first_byte, int64_t count,
                       std::byte* out) {
    std::vector<const std::byte*> sources(static_cast<size_t>(group.size));
    for (int peer = 0; peer < group.size; ++peer) {
      sources[static_cast<size_t>(peer)] = visit.posted(peer).data + first_byte;
    }
    SumInRankOrder(call.dtype, sources, out, count);
  }

  std::vector<std::string> Exchange(const Call& call, std::string_view mine) {
    group_->family->ThrowIfAborted();
    Visit visit(*group_, group_->host_calls, host_calls_++, rank_, call);
    visit.Meet(nullptr, mine);
    std::vector<std::string> all;
    for (int peer = 0; peer < size(); ++peer) all.push_back(visit.posted(peer).text);
    visit.Leave();
    return all;
  }

  std::shared_ptr<Group> group_;
  int rank_;
  uint64_t stream_calls_ = 0, host_calls_ = 0;
};

std::unique_ptr<Communicator> ThreadRank::Split(int color, int key) {
  struct Wish {
    int color, key, rank;
  };
  const Wish mine{color, key, rank_};
  const uint64_t number = host_calls_;
  std::vector<Wish> members;
  for (const std::string& text : Exchange({.op = Op::kSplit}, {reinterpret_cast<const char*>(&mine), sizeof mine})) {
    Wish wish;
    std::memcpy(&wish, text.data(), sizeof wish);
    if (wish.color == color) members.push_back(wish);
  }
  std::sort(members.begin(), members.end(),
            [](const Wish& a, const Wish& b) { return std::pair(a.key, a.rank) < std::pair(b.key, b.rank); });
  int new_rank = 0;
  std::vector<int> names;
  for (const Wish& wish : members) {
    if (wish.rank == rank_) new_rank = static_cast<int>(names.size());
    names.push_back(group_->names[static_cast<size_t>(wish.rank)]);
  }
  const std::lock_guard lock(group_->mutex);
  Group::Fresh& fresh = group_->fresh[{number, color}];
  if (!fresh.group) fresh.group = std::make_shared<Group>(group_->family, names);
  auto result = std::make_unique<ThreadRank>(fresh.group, new_rank);
  if (++fresh.fetched == fresh.group->size) group_->fresh.erase({number, color});
  return result;
}

std::vector<int> FirstNames(int size) {
  if (size < 1) throw Error(Str("thread_group: a group has at least one rank, not ", size));
  std::vector<int> names;
  for (int rank = 0; rank < size; ++rank) names.push_back(rank);
  return names;
}

}  // namespace

ThreadGroup::ThreadGroup(int size) : impl_(std::make_shared<Impl>(std::make_shared<Family>(), FirstNames(size))) {}
ThreadGroup::~ThreadGroup() = default;

int ThreadGroup::size() const { return impl_->size; }

std::unique_ptr<Communicator> ThreadGroup::Rank(int rank) {
  if (rank < 0 || rank >= size()) throw Error(Str("thread_group: rank ", rank, " is outside a group of ", size()));
  const std::lock_guard lock(impl_->mutex);
  if (impl_->taken[static_cast<size_t>(rank)]) throw Error(Str("thread_group: rank ", rank, " was claimed twice"));
  impl_->taken[static_cast<size_t>(rank)] = true;
  return std::make_unique<ThreadRank>(impl_, rank);
}

void ThreadGroup::SetTimeout(double seconds) {
  if (!(seconds > 0)) throw Error(Str("thread_group: the timeout must be above 0 s, not ", seconds));
  impl_->family->timeout_s = seconds;
}

void ThreadGroup::Abort(std::string_view reason) noexcept { impl_->family->Abort(reason); }

}  // namespace tessera::comm
