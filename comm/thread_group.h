// SPDX-License-Identifier: Apache-2.0
// A group whose ranks are threads of one process. Collectives read the other ranks' buffers in place: nothing goes
// through a mailbox.
//
//   ThreadGroup group(4);
//   // in the thread of rank r:
//   std::unique_ptr<Communicator> comm = group.Rank(r);
//
// A group and all groups split off it fail as one: a rank that is gone is gone from all of them. Calls may be queued on
// several streams, and host exchanges have a sequence of their own, so one in flight never holds up another.
#pragma once

#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace tessera::comm {

class ThreadGroup {
 public:
  explicit ThreadGroup(int size);
  ~ThreadGroup();  // the communicators live on
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const;
  // Each rank's may be taken once, from any thread.
  std::unique_ptr<Communicator> Rank(int rank);
  // How long a rank waits for another in one collective before it ends the group; 600 s at first.
  void SetTimeout(double seconds);
  void Abort(std::string_view reason) noexcept;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace tessera::comm
