// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/self.h"
#include "comm/thread_board.h"
#include "comm/thread_group.h"
#include "tensor/context.h"
#include "tensor/thread_pool.h"
#include "zero/rank_run.h"

namespace tessera::zero {
namespace {

constexpr double kGraceSeconds = 10;  // for ranks to come back once the group has failed

struct Results {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RankOutcome> by_rank;
  int first_failure = -1;
};

RankOutcome RunOne(const std::shared_ptr<comm::ThreadBoard>& board, std::unique_ptr<comm::Communicator> inner,
                   int threads, FunctionRef<void(Rank&)> body) {
  RankOutcome result;
  const int index = inner->rank();
  RunAsRank(std::move(inner), board, threads, body, [&](const RankOutcome& outcome) {
    result = outcome;
    if (!outcome.failed) board->MarkFinished(index);
    if (outcome.failed_first) board->MarkFailed(index, outcome.message);
  });
  return result;
}

absl::Status Summary(const Results& results) {
  std::string message;
  for (size_t rank = 0; rank < results.by_rank.size(); ++rank) {
    const RankOutcome& outcome = results.by_rank[rank];
    if (!outcome.failed || static_cast<int>(rank) == results.first_failure) continue;
    if (results.first_failure >= 0 && !outcome.failed_first) continue;  // fell with it
    message += Str(message.empty() ? "" : "\n", "rank ", rank, ": ", outcome.message);
    if (results.first_failure < 0) break;  // all say the same: the group found the fault
  }
  if (results.first_failure >= 0) {
    const std::string first =
        Str("rank ", results.first_failure, ": ", results.by_rank[static_cast<size_t>(results.first_failure)].message);
    message = message.empty() ? first : first + "\n" + message;
  }
  return message.empty() ? absl::OkStatus() : absl::AbortedError(message);
}

}  // namespace

absl::Status RunThreadRanks(const RankOptions& options, FunctionRef<void(Rank&)> body) {
  const int size = options.world_size;
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, NumThreads() / size);
  const auto board = std::make_shared<comm::ThreadBoard>(size);
  board->SetTimeout(options.comm_timeout_s);
  Results results;
  results.by_rank.resize(static_cast<size_t>(size));
  if (size == 1) {
    results.by_rank[0] = RunOne(board, std::make_unique<comm::Self>(), threads, body);
    if (results.by_rank[0].failed) results.first_failure = 0;
    return Summary(results);
  }
  comm::ThreadGroup group(size);
  group.SetTimeout(options.comm_timeout_s);
  const Context context = CurrentContext();
  std::vector<std::thread> workers;
  for (int rank = 0; rank < size; ++rank) {
    workers.emplace_back([&, rank] {
      const ContextGuard guard(context);
      const RankOutcome outcome = RunOne(board, group.Rank(rank), threads, body);
      const std::lock_guard lock(results.mutex);
      if (outcome.failed_first && results.first_failure < 0) results.first_failure = rank;
      results.by_rank[static_cast<size_t>(rank)] = outcome;
      results.changed.notify_all();
    });
  }
  {
    std::unique_lock lock(results.mutex);
    const auto all_ended = [&] {
      return std::all_of(results.by_rank.begin(), results.by_rank.end(), [](const RankOutcome& o) { return o.ended; });
    };
    const auto any_failed = [&] {
      return std::any_of(results.by_rank.begin(), results.by_rank.end(), [](const RankOutcome& o) { return o.failed; });
    };
    results.changed.wait(lock, [&] { return all_ended() || any_failed(); });
    const auto grace = std::chrono::duration<double>(options.grace_s);
    if (!results.changed.wait_for(lock, grace, all_ended)) {
      std::string missing;
      for (int rank = 0; rank < size; ++rank) {
        if (!results.by_rank[static_cast<size_t>(rank)].ended) missing += Str(missing.empty() ? "" : ", ", rank);
      }
      std::fprintf(stderr, "%s\nranks: %s did not come back within %g s of the failure; ending the process\n",
                   std::string(Summary(results).message()).c_str(), missing.c_str(), options.grace_s);
      std::fflush(stderr);
      std::_Exit(1);
    }
  }
  for (std::thread& worker : workers) worker.join();
  return Summary(results);
}

}  // namespace tessera::zero
