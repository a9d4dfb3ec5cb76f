// SPDX-License-Identifier: Apache-2.0
// Ranks as threads for tests: the launcher that thread ranks need, over any implementation of a group.
//
//   World world({.size = 3, .ledger = true});
//   const Outcome outcome = world.OnRanks([&](Communicator& comm, Stream& stream) { ... });
//   EXPECT_EQ(outcome.errors, std::vector<std::string>(3));
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/ledger.h"
#include "comm/self.h"
#include "comm/thread_board.h"
#include "comm/thread_group.h"
#include "tensor/function_ref.h"
#include "tensor/stream.h"

namespace tessera::comm::testing {

struct WorldOptions {
  int size = 2;
  bool self = false;    // the lone rank's own class, else threads
  bool ledger = false;  // a ledger in front
  StreamKind stream = StreamKind::kInline;
  double timeout_s = 30;
  bool short_messages = false;  // where ranks are processes
};

struct Outcome {
  std::vector<std::string> errors;  // what each rank's body threw; empty: nothing
  std::vector<bool> aborted;        // whether that was an AbortedError
};

class World {
 public:
  using Body = FunctionRef<void(Communicator& comm, Stream& stream)>;

  explicit World(const WorldOptions& options) : options_(options), group_(options.size) {
    group_.SetTimeout(options.timeout_s);
    if (options.ledger) {
      board_ = std::make_shared<ThreadBoard>(options.size);
      board_->SetTimeout(options.timeout_s);
    }
  }

  int size() const { return options_.size; }
  ThreadGroup& group() { return group_; }
  ThreadBoard& board() { return *board_; }

  std::unique_ptr<Communicator> Rank(int rank) {
    std::unique_ptr<Communicator> base;
    if (options_.self) {
      base = std::make_unique<Self>();
    } else {
      base = group_.Rank(rank);
    }
    if (!board_) return base;
    return std::make_unique<Ledger>(std::move(base), board_);
  }

  // Calls body on a thread per rank, and waits for its stream. `absent`: a rank that never starts.
  Outcome OnRanks(Body body, int absent = -1) {
    Outcome outcome{std::vector<std::string>(static_cast<size_t>(size())), std::vector<bool>()};
    std::vector<char> aborted(static_cast<size_t>(size()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == absent) continue;
      threads.emplace_back([this, body, rank, &outcome, &aborted] {
        std::string& error = outcome.errors[static_cast<size_t>(rank)];
        try {
          const std::unique_ptr<Communicator> comm = Rank(rank);
          Stream stream(options_.stream);
          body(*comm, stream);
          stream.Synchronize();
        } catch (const AbortedError& caught) {
          error = caught.what();
          aborted[static_cast<size_t>(rank)] = 1;
        } catch (const std::exception& caught) {
          error = caught.what();
        }
        if (!board_) {
          if (!error.empty()) group_.Abort(error);
        } else if (error.empty()) {
          board_->MarkFinished(rank);
        } else {
          board_->MarkFailed(rank, error);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    outcome.aborted.assign(aborted.begin(), aborted.end());
    return outcome;
  }

 private:
  WorldOptions options_;
  ThreadGroup group_;
  std::shared_ptr<ThreadBoard> board_;
};

}  // namespace tessera::comm::testing
