// SPDX-License-Identifier: Apache-2.0
#include "comm/tickets.h"

#include <algorithm>

namespace tessera::comm {
namespace {

constexpr size_t kRecent = 20;

}  // namespace

std::string FaultOf(int name, const Ticket& ticket, const Seen& other) {
  if (other.same.number == ticket.number && !(other.same.call == ticket.call)) {
    return Str(ticket.host ? "host call #" : "collective #", ticket.number, ": ",
               Disagreement(name, ticket.call, other.name, other.same.call));
  }
  // Two sequences, one order: this call is the other rank's future and that rank's call is this one's future.
  const Ticket& across = other.across;
  if (across.number > ticket.other_number && across.other_number < ticket.number && ticket.one_thread &&
      across.one_thread) {
    return Str("rank ", name, " calls ", ticket.ToString(), " where rank ", other.name, " calls ", across.ToString());
  }
  if (other.same.number != ticket.number && other.finished) {
    return Str("rank ", other.name, " has returned; rank ", name, " waits in ", ticket.ToString());
  }
  return {};
}

std::string Waiting(std::span<const Ticket> tickets, std::span<const int> names, std::vector<int>* missing) {
  uint64_t number = 0;
  for (const Ticket& ticket : tickets) number = std::max(number, ticket.number);
  std::vector<int> here;
  const Ticket* what = nullptr;
  missing->clear();
  for (size_t rank = 0; rank < tickets.size(); ++rank) {
    (tickets[rank].number == number ? here : *missing).push_back(names[rank]);
    if (tickets[rank].number == number) what = &tickets[rank];
  }
  if (missing->empty()) return {};
  return Str(RankList(here), here.size() == 1 ? " waits in " : " wait in ", what->ToString());
}

std::string GroupPrefix(bool is_part, const std::vector<int>& names) {
  return is_part ? Str("comm: in the group of ", RankList(names), ": ") : "comm: ";
}

void CallLog::Add(int group, const Ticket& ticket) {
  if (entries_.size() == kRecent) entries_.pop_front();
  entries_.push_back({group, ticket, State::kQueued});
}

void CallLog::Mark(int group, const Ticket& ticket, State state) {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->group == group && entry->ticket.host == ticket.host && entry->ticket.number == ticket.number) {
      entry->state = state;
      return;
    }
  }
}

std::string CallLog::ToString(int name, FunctionRef<std::string(int group)> group_text) const {
  static constexpr std::string_view kStates[] = {"queued", "begun", "done"};
  std::string out;
  for (const Entry& entry : entries_) {
    out += Str("rank ", name, ": ", entry.ticket.ToString(), group_text(entry.group), " (",
               kStates[static_cast<int>(entry.state)], ")\n");
  }
  return out;
}

}  // namespace tessera::comm
