// SPDX-License-Identifier: Apache-2.0
// The ledgers' board where ranks are processes: every process has a copy, and short messages keep the copies alike.
// Nobody serves the messages but who waits: a rank learns of the others' fate in its next wait. Inside comm only.
//
//   auto family = std::make_shared<MessageFamily>(id, size, rank, spins, post);
//   family->AwaitHello();                                    // all processes have made theirs
//   Ledger comm(..., std::make_shared<MessageBoard>(family));
//   family->MarkFinished();                                  // or, after an exception, MarkFailed(error.what())
//   if (!family->AwaitAllFinished()) die(family->failure());
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/ledger.h"
#include "tensor/function_ref.h"

namespace tessera::comm {

// Carries messages of a few kilobytes, in order between two processes.
class Post {
 public:
  virtual ~Post() = default;
  virtual void Send(int to, std::string bytes) = 0;  // does not wait
  virtual bool Deliver() = 0;  // calls MessageFamily::Receive for what has come; false: nothing had
};

// What a process knows of a group and of all groups split off it, which fail as one.
class MessageFamily {
 public:
  MessageFamily(uint64_t id, int size, int rank, bool spins, Post& post);
  ~MessageFamily();
  MessageFamily(const MessageFamily&) = delete;
  MessageFamily& operator=(const MessageFamily&) = delete;

  static uint64_t IdOf(std::string_view message);  // of the family that a message is for
  void Receive(int from, std::string_view message);

  int size() const;
  int rank() const;
  bool spins() const;
  double timeout_s() const;
  void SetTimeout(double seconds);

  bool failed() const;
  bool finished() const;        // all ranks have
  bool failed_here() const;     // this process found the fault, or made it
  std::string failure() const;  // empty: it has not failed
  void ThrowIfFailed() const;
  // Ends the family, everywhere. The first reason counts, on each process.
  void Fail(std::string_view reason) noexcept;
  void MarkFailed(std::string_view message) noexcept;
  void MarkFinished() noexcept;

  void AwaitHello();
  bool AwaitAllFinished();  // without a time limit; false: the family has failed
  // Whether, within the time, a lower rank says that it ends the job for a fault of its own: for this very reason, or,
  // where `any` is set, for whatever reason.
  bool AwaitWordOfALowerRank(std::string_view reason, bool any, double seconds);
  // Polls until `done` or throws AbortedError: after a failure, and after the time limit with `silence` as the reason
  // (empty: wait on). Both are called under the family's lock.
  void Await(FunctionRef<bool()> done, FunctionRef<std::string()> silence);

  struct Impl;

 private:
  friend class MessageBoard;
  std::unique_ptr<Impl> impl_;
};

class MessageBoard final : public LedgerBoard {
 public:
  explicit MessageBoard(std::shared_ptr<MessageFamily> family);  // of the whole family
  ~MessageBoard() override;

  int size() const override;
  void Join(int rank, int name, Communicator* base) override;
  void Leave(int) noexcept override {}
  void ThrowIfFailed() override;
  void Issue(int rank, const Ticket& ticket) override;
  void Meet(int rank, const Ticket& ticket) override;
  void Done(int rank, const Ticket& ticket) override;
  void Fail(std::string_view reason) noexcept override;
  std::shared_ptr<LedgerBoard> Split(uint64_t number, int color, int size) override;
  std::string Recent(int rank) const override;  // of this process's rank

  struct Group;

 private:
  MessageBoard(std::shared_ptr<MessageFamily> family, std::shared_ptr<Group> group);

  std::shared_ptr<MessageFamily> family_;
  std::shared_ptr<Group> group_;
};

}  // namespace tessera::comm
