// SPDX-License-Identifier: Apache-2.0
// The ledgers' board where ranks are threads of one process, and what their launcher tells it.
//
//   ThreadGroup group(size);
//   auto board = std::make_shared<ThreadBoard>(size);
//   // in the thread of rank r, when all of the rank's streams are gone:
//   board->MarkFinished(r);                    // or, after an exception
//   board->MarkFailed(r, error.what());
//   // after the threads: board->failure(), board->Recent()
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/ledger.h"

namespace tessera::comm {

class ThreadBoard final : public LedgerBoard {
 public:
  explicit ThreadBoard(int size);
  ~ThreadBoard() override;

  // The rank's thread has ended with this message; ends the group.
  void MarkFailed(int rank, std::string_view message) noexcept;
  // The rank will call no more; ends the group if another waits for it, or when one does.
  void MarkFinished(int rank) noexcept;
  // How long a rank may keep the others waiting; 600 s at first.
  void SetTimeout(double seconds);
  std::string failure() const;  // the reason why the group has ended; empty: it has not
  std::string Recent() const;   // every rank's last 20 collectives, one line each

  int size() const override;
  void Join(int rank, int name, Communicator* base) override;
  void Leave(int rank) noexcept override;
  void ThrowIfFailed() override;
  void Issue(int rank, const Ticket& ticket) override;
  void Meet(int rank, const Ticket& ticket) override;
  void Done(int rank, const Ticket& ticket) override;
  void Fail(std::string_view reason) noexcept override;
  std::shared_ptr<LedgerBoard> Split(uint64_t number, int color, int size) override;
  std::string Recent(int rank) const override;

 private:
  struct Tree;  // what a board and those split off it share
  struct Impl;
  struct Slot;
  void Await(Slot& slot, uint32_t epoch);
  ThreadBoard(std::shared_ptr<Tree> tree, int size);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::comm
