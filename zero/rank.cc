// SPDX-License-Identifier: Apache-2.0
#include "zero/rank.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensor/context.h"
#include "tensor/thread_pool.h"
#include "zero/launcher.h"
#include "zero/rank_run.h"

namespace tessera::zero {
namespace {

// Tensors may outlive their rank; an allocator that still has some alive is kept for ever.
class AllocatorKeeper {
 public:
  AllocatorKeeper() : allocator_(std::make_unique<HostAllocator>()) {}
  ~AllocatorKeeper() {
    allocator_->ReleaseCached();
    if (allocator_->stats().bytes == 0) return;
    static std::mutex mutex;
    static auto* kept = new std::vector<std::unique_ptr<HostAllocator>>();
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(allocator_));
  }
  AllocatorKeeper(const AllocatorKeeper&) = delete;
  AllocatorKeeper& operator=(const AllocatorKeeper&) = delete;
  Allocator& get() { return *allocator_; }

 private:
  std::unique_ptr<HostAllocator> allocator_;
};

}  // namespace

void RunAsRank(std::unique_ptr<comm::Communicator> inner, std::shared_ptr<comm::LedgerBoard> board, int threads,
               FunctionRef<void(Rank&)> body, FunctionRef<void(const RankOutcome&)> ended) {
  AllocatorKeeper allocator;
  ThreadPool pool(threads);
  Context context = CurrentContext();
  context.cpu_allocator = &allocator.get();
  context.thread_pool = &pool;
  context.rank = inner->rank();
  const ContextGuard guard(context);
  RankOutcome outcome{.ended = true};
  try {
    Rank rank(std::make_unique<comm::Ledger>(std::move(inner), std::move(board)), allocator.get());
    body(rank);
  } catch (const comm::AbortedError& error) {
    outcome.failed = true;
    outcome.message = error.what();
  } catch (const std::exception& error) {
    outcome.failed = outcome.failed_first = true;
    outcome.message = error.what();
  } catch (...) {
    outcome.failed = outcome.failed_first = true;
    outcome.message = "an exception of unknown type";
  }
  ended(outcome);
}

bool Rank::AllAgree(bool mine) {
  for (const std::string& theirs : comm_->AllGatherBytes(mine ? "y" : "n")) {
    if (theirs == "n") return false;
  }
  return true;
}

absl::StatusOr<World> FindWorld(int requested) {
  const absl::StatusOr<Launcher> launcher = FindLauncher();
  if (!launcher.ok()) return launcher.status();
  const absl::StatusOr<int> size = WorldSizeUnder(*launcher, requested);
  if (!size.ok()) return size.status();
  return World{*size, launcher->mpi ? "processes of " + launcher->command : "threads of this process"};
}

absl::Status RunRanks(const RankOptions& options, FunctionRef<void(Rank&)> body) {
  const absl::StatusOr<Launcher> launcher = FindLauncher();
  if (!launcher.ok()) return launcher.status();
  const absl::StatusOr<int> size = WorldSizeUnder(*launcher, options.world_size);
  if (!size.ok()) return size.status();
  RankOptions resolved = options;
  resolved.world_size = *size;
  if (!launcher->mpi || launcher->size == 1) return RunThreadRanks(resolved, body);
#ifdef TESSERA_MPI
  return RunMpiRank(resolved, body);
#else
  return absl::FailedPreconditionError(Str(
      "ranks: ", launcher->command, " has started ", launcher->size,
      " processes, but this program was built without "
      "MPI: install libopenmpi-dev and configure the build anew with -Dmpi=enabled, or start it alone with --num_gpus ",
      launcher->size));
#endif
}

}  // namespace tessera::zero
