// SPDX-License-Identifier: Apache-2.0
// The parts of RunRanks. Inside zero only.
#pragma once

#include <memory>
#include <string>

#include "zero/rank.h"

namespace tessera::zero {

struct RankOutcome {
  bool ended = false;
  bool failed = false;
  bool failed_first = false;  // by itself, not because another rank did
  std::string message;
};

// Runs `body` as a rank, with memory, threads and Context of its own. `ended` is told how it went while its memory is still
// there.
void RunAsRank(std::unique_ptr<comm::Communicator> inner, std::shared_ptr<comm::LedgerBoard> board, int threads,
               FunctionRef<void(Rank&)> body, FunctionRef<void(const RankOutcome&)> ended);

// Ranks as threads of this process.
absl::Status RunThreadRanks(const RankOptions& options, FunctionRef<void(Rank&)> body);
// This process's rank of the job. Ends the job when a rank fails.
absl::Status RunMpiRank(const RankOptions& options, FunctionRef<void(Rank&)> body);

}  // namespace tessera::zero
