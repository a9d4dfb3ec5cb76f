// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "comm/mpi_group.h"
#include "tensor/thread_pool.h"
#include "zero/rank_run.h"

namespace tessera::zero {
namespace {

constexpr double kGraceSeconds = 10;  // for the rank that knows why to say so and to end the job

// Who is to say it waits a little for a lower rank that says the same: what all ranks find at once is then said once.
double PolitenessSeconds(int rank) { return 0.05 * std::min(rank, 8); }

[[noreturn]] void SayAndEnd(const std::string& line) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.c_str());
  comm::EndMpiJob(1);
}

// The cause is said by the rank where it arose. One that only fell with another waits for the end that this one brings.
[[noreturn]] void EndFailedRun(comm::MessageFamily& family, const comm::MpiProcess& process, const RankOutcome& outcome,
                               bool was_well) {
  const std::string reason = family.failure();
  if (outcome.failed_first && was_well) {
    if (!family.AwaitWordOfALowerRank(outcome.message, false, PolitenessSeconds(process.rank))) {
      SayAndEnd(Str("rank ", process.rank, " (", process.host, "): ", outcome.message));
    }
  } else if (family.failed_here()) {
    if (!family.AwaitWordOfALowerRank(reason, true, PolitenessSeconds(process.rank))) SayAndEnd(reason);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(kGraceSeconds));
  SayAndEnd(reason);
}

}  // namespace

absl::Status RunMpiRank(const RankOptions& options, FunctionRef<void(Rank&)> body) {
  const comm::MpiProcess& process = comm::StartMpi(options.comm_timeout_s);
  if (process.size != options.world_size) {
    return absl::InternalError(
        Str("ranks: the environment says ", options.world_size, " processes, MPI says ", process.size));
  }
  std::optional<comm::MpiGroup> group;
  try {
    group.emplace(process.size, comm::MpiOptions{.timeout_s = options.comm_timeout_s});
  } catch (const Error& error) {
    std::this_thread::sleep_for(std::chrono::duration<double>(PolitenessSeconds(process.rank)));
    SayAndEnd(error.what());
  }
  comm::MessageFamily& family = group->family();
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                                   : std::max(1, NumThreads() / process.ranks_on_my_processors);
  RankOutcome result;
  bool was_well = true;  // when this rank ended, no other had brought it down
  RunAsRank(group->Rank(), group->board(), threads, body, [&](const RankOutcome& outcome) {
    result = outcome;
    was_well = !family.failed() || family.failed_here();
    if (!outcome.failed) family.MarkFinished();
    if (outcome.failed_first) family.MarkFailed(outcome.message);
  });
  if (result.failed || !family.AwaitAllFinished()) EndFailedRun(family, process, result, was_well);
  return absl::OkStatus();
}

}  // namespace tessera::zero
