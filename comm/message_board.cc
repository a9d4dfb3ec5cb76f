// SPDX-License-Identifier: Apache-2.0
#include "comm/message_board.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/backoff.h"
#include "comm/tickets.h"

namespace tessera::comm {
namespace {

constexpr uint64_t kWhole = 1;         // the id of the family's first group
constexpr size_t kLongestText = 2048;  // a message must go without the receiver's help

enum class Kind : uint8_t { kHello, kTicket, kJoin, kFinished, kFailed };

struct Header {
  uint64_t family;
  uint64_t group;
  Kind kind;
  int rank;         // in the group
  uint64_t number;  // kJoin: of the host call that splits the group
  int color;        // and what the rank wished for, and got
  int part_rank;
  Ticket ticket;
};
static_assert(std::is_trivially_copyable_v<Header>);

// The id of a part, the same on every process. Ids that collide are as likely as a flipped bit in memory.
uint64_t PartId(uint64_t group, uint64_t number, int color) {
  uint64_t id = group;
  for (const uint64_t word : {number, static_cast<uint64_t>(color)}) {
    id = (id ^ word) * 0x9E3779B97F4A7C15u;
    id = (id ^ (id >> 29)) * 0xBF58476D1CE4E5B9u;
    id ^= id >> 32;
  }
  return id;
}

}  // namespace

// A group as this process sees it. Guarded by the family's mutex.
struct MessageBoard::Group {
  uint64_t id = kWhole;
  int index = 0;  // among the groups that this process was in
  int size = 0;
  int rank = 0;
  std::vector<int> names;  // ranks of the family, by rank of the group

  // Calls to which somebody has come and which this rank has not left, by number: the tickets by rank.
  std::map<uint64_t, std::vector<Ticket>> calls[2];
  std::vector<Ticket> latest[2];

  // Of a part, until its ranks have joined.
  std::shared_ptr<Group> parent;
  uint64_t split_number = 0;
  int color = 0;

  std::vector<Ticket>& TicketsOf(const Ticket& ticket) {
    std::vector<Ticket>& tickets = calls[ticket.host][ticket.number];
    if (tickets.empty()) tickets.resize(static_cast<size_t>(size));
    return tickets;
  }
  void Enter(int from_rank, const Ticket& ticket) {
    TicketsOf(ticket)[static_cast<size_t>(from_rank)] = ticket;
    Ticket& last = latest[ticket.host][static_cast<size_t>(from_rank)];
    if (ticket.number > last.number) last = ticket;
  }
  std::string Prefix() const { return GroupPrefix(id != kWhole, names); }
  bool IsWaitingIn(const std::vector<Ticket>& tickets) const { return tickets[static_cast<size_t>(rank)].number != 0; }
};

using Group = MessageBoard::Group;

struct MessageFamily::Impl {
  Impl(uint64_t the_id, int the_size, int the_rank, bool may_spin, Post& the_post)
      : id(the_id), size(the_size), rank(the_rank), spins(may_spin), post(the_post) {}

  const uint64_t id;
  const int size, rank;
  const bool spins;
  Post& post;
  std::atomic<double> timeout_s{600};
  std::atomic<bool> failed{false};

  mutable std::mutex mutex;  // of all below, and of the groups
  std::string reason;
  bool failed_here = false;
  std::set<int> hellos, finished;
  std::map<int, std::string> reports;  // why other ranks end the family
  std::map<uint64_t, Group*> groups;
  std::map<uint64_t, std::vector<Header>> early;  // tickets of groups that this process has yet to join
  struct Joined {
    int name, color, part_rank;
  };
  std::map<std::pair<uint64_t, uint64_t>, std::vector<Joined>> joins;  // by group and split
  std::vector<std::vector<int>> names_of_groups;                       // that this process was in
  CallLog log;

  void Send(int to, Header header, std::string_view text = {}) {
    header.family = id;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += text.substr(0, kLongestText);
    post.Send(to, std::move(bytes));
  }
  void SendToAll(const Header& header, std::string_view text = {}) {
    for (int to = 0; to < size; ++to) {
      if (to != rank) Send(to, header, text);
    }
  }

  void FailLocked(std::string_view why, bool here) noexcept {
    if (failed) return;
    reason = why;
    failed_here = here;
    failed = true;
    if (here) SendToAll({.kind = Kind::kFailed, .rank = rank}, why);
  }

  // The calls in which this process waits, with "; " before each.
  std::string WaitingAnywhere(const std::vector<Ticket>* but) const {
    std::string out;
    std::vector<int> missing;
    for (const auto& [group_id, group] : groups) {
      for (const auto& sequence : group->calls) {
        for (const auto& [number, tickets] : sequence) {
          if (&tickets == but || !group->IsWaitingIn(tickets)) continue;
          const std::string waiting = Waiting(tickets, group->names, &missing);
          if (!waiting.empty()) out += Str("; ", waiting);
        }
      }
    }
    return out;
  }

  void EnterFrom(Group& group, const Header& header) {
    group.Enter(header.rank, header.ticket);
    const auto me = static_cast<size_t>(group.rank);
    const Ticket& ticket = header.ticket;
    const Seen seen{rank, group.TicketsOf(ticket)[me], group.latest[!ticket.host][me], false};
    const std::string fault = FaultOf(group.names[static_cast<size_t>(header.rank)], ticket, seen);
    if (!fault.empty()) FailLocked(group.Prefix() + fault, true);
  }

  void NoteFinished(int name) {
    finished.insert(name);
    for (const auto& [group_id, group] : groups) {
      for (const auto& sequence : group->calls) {
        for (const auto& [number, tickets] : sequence) {
          std::vector<int> missing;
          const std::string waiting = Waiting(tickets, group->names, &missing);
          if (!group->IsWaitingIn(tickets) || std::find(missing.begin(), missing.end(), name) == missing.end())
            continue;
          return FailLocked(Str(group->Prefix(), "rank ", name, " has returned; ", waiting), true);
        }
      }
    }
  }
};

MessageFamily::MessageFamily(uint64_t id, int size, int rank, bool spins, Post& post)
    : impl_(std::make_unique<Impl>(id, size, rank, spins, post)) {}
MessageFamily::~MessageFamily() = default;

uint64_t MessageFamily::IdOf(std::string_view message) {
  uint64_t id = 0;
  std::memcpy(&id, message.data() + offsetof(Header, family), sizeof id);
  return id;
}

void MessageFamily::Receive(int from, std::string_view message) {
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  const std::string_view text = message.substr(sizeof header);
  const std::lock_guard lock(impl_->mutex);
  switch (header.kind) {
    case Kind::kHello:
      impl_->hellos.insert(from);
      break;
    case Kind::kTicket:
      if (const auto group = impl_->groups.find(header.group); group != impl_->groups.end()) {
        impl_->EnterFrom(*group->second, header);
      } else {
        impl_->early[header.group].push_back(header);
      }
      break;
    case Kind::kJoin:
      impl_->joins[{header.group, header.number}].push_back({from, header.color, header.part_rank});
      break;
    case Kind::kFinished:
      impl_->NoteFinished(from);
      break;
    case Kind::kFailed:
      impl_->reports.insert_or_assign(from, std::string(text));
      impl_->FailLocked(text, false);
      break;
  }
}

int MessageFamily::size() const { return impl_->size; }
int MessageFamily::rank() const { return impl_->rank; }
bool MessageFamily::spins() const { return impl_->spins; }
double MessageFamily::timeout_s() const { return impl_->timeout_s; }
void MessageFamily::SetTimeout(double seconds) {
  if (!(seconds > 0)) throw Error(Str("comm: the timeout must be above 0 s, not ", seconds));
  impl_->timeout_s = seconds;
}

bool MessageFamily::failed() const { return impl_->failed; }
bool MessageFamily::finished() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->finished.size() == static_cast<size_t>(impl_->size);
}
bool MessageFamily::failed_here() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failed_here;
}
std::string MessageFamily::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reason;
}
void MessageFamily::ThrowIfFailed() const {
  if (impl_->failed) throw AbortedError(failure());
}

void MessageFamily::Fail(std::string_view reason) noexcept {
  const std::lock_guard lock(impl_->mutex);
  impl_->FailLocked(reason, true);
}

void MessageFamily::MarkFailed(std::string_view message) noexcept {
  const std::lock_guard lock(impl_->mutex);
  const std::string why = Str("comm: rank ", impl_->rank, " failed: ", message.substr(0, message.find('\n')));
  // What unwound may have ended the family before its cause was known: the others are told that too.
  if (impl_->failed_here) impl_->SendToAll({.kind = Kind::kFailed, .rank = impl_->rank}, why);
  impl_->FailLocked(why, true);
}

void MessageFamily::MarkFinished() noexcept {
  const std::lock_guard lock(impl_->mutex);
  impl_->finished.insert(impl_->rank);
  impl_->SendToAll({.kind = Kind::kFinished, .rank = impl_->rank});
}

void MessageFamily::AwaitHello() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->hellos.insert(impl_->rank);
    impl_->SendToAll({.kind = Kind::kHello, .rank = impl_->rank});
  }
  Await([&] { return impl_->hellos.size() == static_cast<size_t>(impl_->size); },
        [&] {
          std::vector<int> missing;
          for (int rank = 0; rank < impl_->size; ++rank) {
            if (!impl_->hellos.contains(rank)) missing.push_back(rank);
          }
          return Str("comm: ", NoSignOf(missing, impl_->timeout_s), "; rank ", impl_->rank,
                     " waits for the group's start");
        });
}

bool MessageFamily::AwaitAllFinished() {
  Backoff backoff(false);
  while (true) {
    {
      const std::lock_guard lock(impl_->mutex);
      if (impl_->failed) return false;
      if (impl_->finished.size() == static_cast<size_t>(impl_->size)) return true;
    }
    if (!impl_->post.Deliver()) backoff.Pause();
  }
}

bool MessageFamily::AwaitWordOfALowerRank(std::string_view reason, bool any, double seconds) {
  const std::string_view same = reason.substr(0, reason.find('\n'));
  for (Backoff backoff(false);; backoff.Pause()) {
    impl_->post.Deliver();
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [rank, report] : impl_->reports) {
      if (rank >= impl_->rank) break;
      if (any || report == Str("comm: rank ", rank, " failed: ", same).substr(0, kLongestText)) return true;
    }
    if (backoff.waited_s() >= seconds) return false;
  }
}

void MessageFamily::Await(FunctionRef<bool()> done, FunctionRef<std::string()> silence) {
  Backoff backoff(impl_->spins);
  while (true) {
    {
      const std::lock_guard lock(impl_->mutex);
      if (impl_->failed) throw AbortedError(impl_->reason);
      if (done()) return;
      if (backoff.waited_s() > impl_->timeout_s) {
        const std::string why = silence();
        if (!why.empty()) impl_->FailLocked(why, true);
        if (impl_->failed) throw AbortedError(impl_->reason);
      }
    }
    if (!impl_->post.Deliver()) backoff.Pause();
  }
}

MessageBoard::MessageBoard(std::shared_ptr<MessageFamily> family)
    : MessageBoard(std::move(family), std::make_shared<Group>()) {
  group_->size = family_->size();
  for (int rank = 0; rank < family_->size(); ++rank) group_->names.push_back(rank);
  for (std::vector<Ticket>& latest : group_->latest) latest.resize(group_->names.size());
}
MessageBoard::MessageBoard(std::shared_ptr<MessageFamily> family, std::shared_ptr<Group> group)
    : family_(std::move(family)), group_(std::move(group)) {}

MessageBoard::~MessageBoard() {
  MessageFamily::Impl& family = *family_->impl_;
  const std::lock_guard lock(family.mutex);
  const auto found = family.groups.find(group_->id);
  if (found != family.groups.end() && found->second == group_.get()) family.groups.erase(found);
}

int MessageBoard::size() const { return group_->size; }

// A part's ranks tell all of the group that it was split from; then each knows who is in its part.
void MessageBoard::Join(int rank, int name, Communicator*) {
  MessageFamily::Impl& family = *family_->impl_;
  if (rank < 0 || rank >= size()) throw Error(Str("ledger: rank ", rank, " is outside a group of ", size()));
  if (name != family.rank) throw Error(Str("ledger: this process is rank ", family.rank, ", not ", name));
  if (const std::shared_ptr<Group> parent = group_->parent) {
    const std::pair key(parent->id, group_->split_number);
    {
      const std::lock_guard lock(family.mutex);
      family.joins[key].push_back({name, group_->color, rank});
      for (const int to : parent->names) {
        if (to == name) continue;
        family.Send(to, {.group = key.first,
                         .kind = Kind::kJoin,
                         .rank = parent->rank,
                         .number = key.second,
                         .color = group_->color,
                         .part_rank = rank});
      }
    }
    family_->Await([&] { return family.joins[key].size() == static_cast<size_t>(parent->size); },
                   [&] {
                     std::vector<int> missing = parent->names;
                     for (const auto& joined : family.joins[key]) std::erase(missing, joined.name);
                     return Str("comm: ", NoSignOf(missing, family.timeout_s), "; rank ", name, " waits in split");
                   });
    const std::lock_guard lock(family.mutex);
    for (const auto& joined : family.joins[key]) {
      if (joined.color == group_->color) group_->names[static_cast<size_t>(joined.part_rank)] = joined.name;
    }
    family.joins.erase(key);
  }
  const std::lock_guard lock(family.mutex);
  if (!family.groups.emplace(group_->id, group_.get()).second) {
    throw Error(Str("ledger: rank ", name, " was claimed twice"));
  }
  group_->rank = rank;
  group_->index = static_cast<int>(family.names_of_groups.size());
  family.names_of_groups.push_back(group_->names);
  if (const auto early = family.early.extract(group_->id)) {
    for (const Header& header : early.mapped()) family.EnterFrom(*group_, header);
  }
}

void MessageBoard::ThrowIfFailed() { family_->ThrowIfFailed(); }

void MessageBoard::Issue(int, const Ticket& ticket) {
  const std::lock_guard lock(family_->impl_->mutex);
  family_->impl_->log.Add(group_->index, ticket);
}

void MessageBoard::Meet(int rank, const Ticket& ticket) {
  MessageFamily::Impl& family = *family_->impl_;
  std::vector<Ticket>* tickets;
  {
    const std::lock_guard lock(family.mutex);
    if (family.failed) throw AbortedError(family.reason);
    family.log.Mark(group_->index, ticket, CallLog::State::kBegun);
    group_->Enter(rank, ticket);
    tickets = &group_->TicketsOf(ticket);
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      const auto o = static_cast<size_t>(other);
      const int name = group_->names[o];
      const Seen seen{name, (*tickets)[o], group_->latest[!ticket.host][o], family.finished.contains(name)};
      const std::string fault = FaultOf(family.rank, ticket, seen);
      if (fault.empty()) continue;
      family.FailLocked(group_->Prefix() + fault, true);
      throw AbortedError(family.reason);
    }
    // Only now: whoever has this ticket has been compared with it.
    for (const int to : group_->names) {
      if (to != family.rank)
        family.Send(to, {.group = group_->id, .kind = Kind::kTicket, .rank = rank, .ticket = ticket});
    }
  }
  const auto have_all_come = [&] {
    return std::all_of(tickets->begin(), tickets->end(), [](const Ticket& theirs) { return theirs.number != 0; });
  };
  family_->Await(have_all_come, [&] {
    std::vector<int> missing;
    const std::string waiting = Waiting(*tickets, group_->names, &missing);
    return Str(group_->Prefix(), NoSignOf(missing, family.timeout_s), "; ", waiting, family.WaitingAnywhere(tickets));
  });
  const std::lock_guard lock(family.mutex);
  group_->calls[ticket.host].erase(ticket.number);
}

void MessageBoard::Done(int, const Ticket& ticket) {
  const std::lock_guard lock(family_->impl_->mutex);
  family_->impl_->log.Mark(group_->index, ticket, CallLog::State::kDone);
}

void MessageBoard::Fail(std::string_view reason) noexcept { family_->Fail(reason); }

std::shared_ptr<LedgerBoard> MessageBoard::Split(uint64_t number, int color, int size) {
  auto part = std::make_shared<Group>();
  part->id = PartId(group_->id, number, color);
  part->size = size;
  part->names.resize(static_cast<size_t>(size), -1);
  for (std::vector<Ticket>& latest : part->latest) latest.resize(static_cast<size_t>(size));
  part->parent = group_;
  part->split_number = number;
  part->color = color;
  return std::shared_ptr<MessageBoard>(new MessageBoard(family_, std::move(part)));
}

std::string MessageBoard::Recent(int rank) const {
  const std::lock_guard lock(family_->impl_->mutex);
  if (rank != group_->rank) return {};
  const MessageFamily::Impl& family = *family_->impl_;
  return family.log.ToString(family.rank, [&](int index) {
    return index == 0 ? std::string()
                      : Str(" in the group of ", RankList(family.names_of_groups[static_cast<size_t>(index)]));
  });
}

}  // namespace tessera::comm
