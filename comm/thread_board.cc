// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_board.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "comm/seats.h"
#include "comm/tickets.h"

namespace tessera::comm {
namespace {

constexpr uint64_t kSlots = 8;  // calls of one sequence under way at a time, as in a ThreadGroup

int CheckedSize(int size) {
  if (size < 1) throw Error(Str("thread_board: a group has at least one rank, not ", size));
  return size;
}

}  // namespace

// The tickets of one call, by rank, with number 0 or that of an earlier call where the rank has not come yet.
struct ThreadBoard::Slot {
  explicit Slot(int size) : seats(size), tickets(static_cast<size_t>(size)) {}
  Seats seats;
  std::vector<Ticket> tickets;
};

struct ThreadBoard::Tree {
  std::mutex mutex;  // of everything below and of what Impl marks
  std::vector<Impl*> boards;
  std::atomic<bool> failed{false};
  std::string reason;
  std::atomic<double> timeout_s{600};
  // A rank's name is its number in the group that all came from. -1: it has not joined its part of the group yet.
  std::vector<std::vector<int>> names;  // by group, then by rank
  std::set<int> finished;
  std::map<int, CallLog> recent;

  void ThrowIfFailed() {
    if (!failed) return;
    const std::lock_guard lock(mutex);
    throw AbortedError(reason);
  }
  void FailLocked(std::string_view why) noexcept;
};

struct ThreadBoard::Impl {
  Impl(std::shared_ptr<Tree> the_tree, int the_size)
      : tree(std::move(the_tree)),
        size(the_size),
        joined(static_cast<size_t>(size)),
        bases(static_cast<size_t>(size)),
        latest{std::vector<Ticket>(joined.size()), std::vector<Ticket>(joined.size())} {
    for (auto* sequence : {&slots[0], &slots[1]}) {
      for (uint64_t i = 0; i < kSlots; ++i) sequence->push_back(std::make_unique<Slot>(size));
    }
    const std::lock_guard lock(tree->mutex);
    group = static_cast<int>(tree->names.size());
    tree->names.emplace_back(joined.size(), -1);
    for (int rank = 0; rank < size && group == 0; ++rank) tree->names[0][static_cast<size_t>(rank)] = rank;
    tree->boards.push_back(this);
    if (tree->failed) AbortSeats();
  }
  ~Impl() {
    const std::lock_guard lock(tree->mutex);
    std::erase(tree->boards, this);
  }

  void AbortSeats() noexcept {
    for (auto& sequence : slots) {
      for (const std::unique_ptr<Slot>& slot : sequence) slot->seats.Abort();
    }
  }
  Slot& slot(const Ticket& ticket) { return *slots[ticket.host][(ticket.number - 1) % kSlots]; }
  std::vector<int>& names() const { return tree->names[static_cast<size_t>(group)]; }
  int name(int rank) const { return names()[static_cast<size_t>(rank)]; }

  std::string Prefix() const { return GroupPrefix(group != 0, names()); }
  std::string Fault(int rank, const Ticket& ticket);
  std::string WaitingAnywhere(const Slot* but) const;
  std::string Dump(int name_of_rank) const;

  const std::shared_ptr<Tree> tree;
  const int size;
  int group;
  std::vector<std::unique_ptr<Slot>> slots[2];  // of streams, of the host
  // The tickets in the slots and these are under the tree's mutex.
  std::vector<bool> joined;
  std::vector<Communicator*> bases;
  std::vector<Ticket> latest[2];  // the last call that a rank has come to, by sequence
  // Boards that some of their ranks have yet to fetch, by the host call that made them and the color.
  std::mutex fresh_mutex;
  std::map<std::pair<uint64_t, int>, std::pair<std::shared_ptr<ThreadBoard>, int>> fresh;
};

void ThreadBoard::Tree::FailLocked(std::string_view why) noexcept {
  if (failed) return;
  reason = why;
  failed = true;
  for (Impl* board : boards) {
    board->AbortSeats();
    for (Communicator* base : board->bases) {
      if (base != nullptr) base->Abort(why);
    }
  }
}

// Who waits in any call under way but one, with "; " before each.
std::string ThreadBoard::Impl::WaitingAnywhere(const Slot* but) const {
  std::string out;
  std::vector<int> missing;
  for (const auto& sequence : slots) {
    for (const std::unique_ptr<Slot>& slot : sequence) {
      if (slot.get() == but) continue;
      const std::string waiting = Waiting(slot->tickets, names(), &missing);
      if (!waiting.empty()) out += Str("; ", waiting);
    }
  }
  return out;
}

// What is wrong with the call that `rank` has come to, seen from the calls that others have come to; empty: nothing.
std::string ThreadBoard::Impl::Fault(int rank, const Ticket& ticket) {
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    const auto o = static_cast<size_t>(other);
    const Seen seen{name(other), slot(ticket).tickets[o], latest[!ticket.host][o],
                    tree->finished.contains(name(other))};
    const std::string fault = FaultOf(name(rank), ticket, seen);
    if (!fault.empty()) return fault;
  }
  return {};
}

ThreadBoard::ThreadBoard(int size) : ThreadBoard(std::make_shared<Tree>(), size) {}
ThreadBoard::ThreadBoard(std::shared_ptr<Tree> tree, int size)
    : impl_(std::make_unique<Impl>(std::move(tree), CheckedSize(size))) {}
ThreadBoard::~ThreadBoard() = default;

int ThreadBoard::size() const { return impl_->size; }

void ThreadBoard::Join(int rank, int name, Communicator* base) {
  if (rank < 0 || rank >= size()) throw Error(Str("ledger: rank ", rank, " is outside a group of ", size()));
  const std::lock_guard lock(impl_->tree->mutex);
  if (impl_->joined[static_cast<size_t>(rank)]) throw Error(Str("ledger: rank ", name, " was claimed twice"));
  impl_->joined[static_cast<size_t>(rank)] = true;
  impl_->names()[static_cast<size_t>(rank)] = name;
  impl_->bases[static_cast<size_t>(rank)] = base;
}

void ThreadBoard::Leave(int rank) noexcept {
  const std::lock_guard lock(impl_->tree->mutex);
  impl_->bases[static_cast<size_t>(rank)] = nullptr;
}

void ThreadBoard::ThrowIfFailed() { impl_->tree->ThrowIfFailed(); }

void ThreadBoard::Issue(int rank, const Ticket& ticket) {
  const std::lock_guard lock(impl_->tree->mutex);
  impl_->tree->recent[impl_->name(rank)].Add(impl_->group, ticket);
}

void ThreadBoard::Meet(int rank, const Ticket& ticket) {
  Tree& tree = *impl_->tree;
  Slot& slot = impl_->slot(ticket);
  const uint32_t epoch = static_cast<uint32_t>((ticket.number - 1) / kSlots);
  Await(slot, epoch);  // all have come to the slot's call before, so its tickets have been compared
  {
    const std::lock_guard lock(tree.mutex);
    if (tree.failed) throw AbortedError(tree.reason);
    slot.tickets[static_cast<size_t>(rank)] = ticket;
    Ticket& latest = impl_->latest[ticket.host][static_cast<size_t>(rank)];
    if (ticket.number > latest.number) latest = ticket;
    tree.recent[impl_->name(rank)].Mark(impl_->group, ticket, CallLog::State::kBegun);
    const std::string fault = impl_->Fault(rank, ticket);
    if (!fault.empty()) {
      tree.FailLocked(impl_->Prefix() + fault);
      throw AbortedError(tree.reason);
    }
  }
  // Only now: whoever meets has been compared with all others.
  slot.seats.Arrive(rank, epoch + 1);
  Await(slot, epoch + 1);
}

void ThreadBoard::Await(Slot& slot, uint32_t epoch) {
  Tree& tree = *impl_->tree;
  while (true) {
    const double timeout_s = tree.timeout_s;
    const Seats::Outcome outcome = slot.seats.WaitForAll(epoch, timeout_s);
    if (outcome == Seats::Outcome::kMet) return;
    const std::lock_guard lock(tree.mutex);
    std::vector<int> missing;
    const std::string waiting = Waiting(slot.tickets, impl_->names(), &missing);
    if (outcome == Seats::Outcome::kTimedOut && !tree.failed) {
      if (missing.empty()) continue;  // the last one came just now
      std::string elsewhere;
      for (Impl* board : tree.boards) elsewhere += board->WaitingAnywhere(&slot);
      tree.FailLocked(Str(impl_->Prefix(), NoSignOf(missing, timeout_s), "; ", waiting, elsewhere));
    }
    throw AbortedError(tree.reason);
  }
}

void ThreadBoard::Done(int rank, const Ticket& ticket) {
  const std::lock_guard lock(impl_->tree->mutex);
  impl_->tree->recent[impl_->name(rank)].Mark(impl_->group, ticket, CallLog::State::kDone);
}

void ThreadBoard::Fail(std::string_view reason) noexcept {
  const std::lock_guard lock(impl_->tree->mutex);
  impl_->tree->FailLocked(reason);
}

void ThreadBoard::MarkFailed(int rank, std::string_view message) noexcept {
  Tree& tree = *impl_->tree;
  const std::lock_guard lock(tree.mutex);
  if (tree.failed) return;
  std::string reason = Str("comm: rank ", rank, " failed: ", message.substr(0, message.find('\n')));
  for (Impl* board : tree.boards) reason += board->WaitingAnywhere(nullptr);
  tree.FailLocked(reason);
}

void ThreadBoard::MarkFinished(int rank) noexcept {
  Tree& tree = *impl_->tree;
  const std::lock_guard lock(tree.mutex);
  tree.finished.insert(rank);
  for (Impl* board : tree.boards) {
    for (const auto& sequence : board->slots) {
      for (const std::unique_ptr<Slot>& slot : sequence) {
        std::vector<int> missing;
        const std::string waiting = Waiting(slot->tickets, board->names(), &missing);
        if (std::find(missing.begin(), missing.end(), rank) == missing.end()) continue;
        return tree.FailLocked(Str(board->Prefix(), "rank ", rank, " has returned; ", waiting));
      }
    }
  }
}

void ThreadBoard::SetTimeout(double seconds) {
  if (!(seconds > 0)) throw Error(Str("thread_board: the timeout must be above 0 s, not ", seconds));
  impl_->tree->timeout_s = seconds;
}

std::string ThreadBoard::failure() const {
  const std::lock_guard lock(impl_->tree->mutex);
  return impl_->tree->reason;
}

std::shared_ptr<LedgerBoard> ThreadBoard::Split(uint64_t number, int color, int size) {
  const std::lock_guard lock(impl_->fresh_mutex);
  auto& [board, fetched] = impl_->fresh[{number, color}];
  if (!board) board = std::shared_ptr<ThreadBoard>(new ThreadBoard(impl_->tree, size));
  std::shared_ptr<ThreadBoard> result = board;
  if (++fetched == size) impl_->fresh.erase({number, color});
  return result;
}

std::string ThreadBoard::Impl::Dump(int name_of_rank) const {
  const auto log = tree->recent.find(name_of_rank);
  if (log == tree->recent.end()) return {};
  return log->second.ToString(name_of_rank, [&](int group_index) {
    if (group_index == 0) return std::string();
    return Str(" in the group of ", RankList(tree->names[static_cast<size_t>(group_index)]));
  });
}

std::string ThreadBoard::Recent(int rank) const {
  const std::lock_guard lock(impl_->tree->mutex);
  return impl_->Dump(impl_->name(rank));
}

std::string ThreadBoard::Recent() const {
  const std::lock_guard lock(impl_->tree->mutex);
  std::string out;
  for (int rank = 0; rank < size(); ++rank) out += impl_->Dump(impl_->name(rank));
  return out;
}

}  // namespace tessera::comm
