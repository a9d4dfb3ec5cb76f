// SPDX-License-Identifier: Apache-2.0
// What boards conclude from the tickets that they have seen, wherever their ranks are. Inside comm only.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "comm/ledger.h"
#include "tensor/function_ref.h"

namespace tessera::comm {

// What another rank of the group has come to.
struct Seen {
  int name;
  Ticket same;    // the same sequence and number, if it has come there; else an earlier number
  Ticket across;  // the latest of the other sequence
  bool finished;  // it has returned
};
// What is wrong with the call that rank `name` has come to, seen from there; empty: nothing.
std::string FaultOf(int name, const Ticket& ticket, const Seen& other);

// "ranks 0, 1 wait in ...": who has come to a call, of which these are the tickets by rank, and in `missing` the names of
// those who have not. Empty where nobody waits.
std::string Waiting(std::span<const Ticket> tickets, std::span<const int> names, std::vector<int>* missing);

// "comm: ", and for a part of the first group who is in it.
std::string GroupPrefix(bool is_part, const std::vector<int>& names);

// A rank's last calls, in all its groups.
class CallLog {
 public:
  enum class State : uint8_t { kQueued, kBegun, kDone };
  void Add(int group, const Ticket& ticket);
  void Mark(int group, const Ticket& ticket, State state);
  // One line each, oldest first. `group_text` is what to say of a group: empty for the first.
  std::string ToString(int name, FunctionRef<std::string(int group)> group_text) const;

 private:
  struct Entry {
    int group;
    Ticket ticket;
    State state;
  };
  std::deque<Entry> entries_;
};

}  // namespace tessera::comm
