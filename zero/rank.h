// SPDX-License-Identifier: Apache-2.0
// Ranks: the same function run by each of N data-parallel workers, as threads of one process, or as the processes that
// mpirun (or srun with PMIx) has started.
//
//   absl::Status status = RunRanks({.world_size = 4}, [&](Rank& rank) {
//     Mlp model;
//     auto engine = Engine::Create(model, config, rank).value();
//     ...
//     if (rank.is_main()) printf("%f\n", loss);
//   });
//
// Each rank has its own memory counts, thread pool and random streams. A rank that throws ends all: the others' next
// collective throws, and the status tells what happened first. Where ranks are processes, the one that fails says why on
// stderr and ends the whole job with status 1; RunRanks then does not return.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/ledger.h"
#include "tensor/allocator.h"
#include "tensor/function_ref.h"

namespace tessera::zero {

struct RankOptions {
  int world_size = 1;           // under mpirun: 1 or as many as it has started, and that many there are
  int threads_per_rank = 0;     // 0: the process's threads divided by the ranks that share them, at least 1
  double comm_timeout_s = 600;  // of silence, before a rank counts as lost
  double grace_s = 10;          // for ranks to come back once the group has failed
};

class Rank {
 public:
  Rank(std::unique_ptr<comm::Ledger> comm, Allocator& allocator) : comm_(std::move(comm)), allocator_(allocator) {}

  int index() const { return comm_->rank(); }
  int world_size() const { return comm_->size(); }
  bool is_main() const { return index() == 0; }  // who prints
  comm::Ledger& comm() { return *comm_; }        // with counters of what was sent
  Allocator& allocator() { return allocator_; }  // of this rank's tensors
  // True while all ranks say so: loops over data of unequal length end together. Collective.
  bool AllAgree(bool mine);

 private:
  std::unique_ptr<comm::Ledger> comm_;
  Allocator& allocator_;
};

// The ranks that RunRanks runs when `requested` are asked for: those, or what mpirun has started. An error where the two
// disagree, and where another launcher's environment is set that cannot be honoured (torchrun, srun without PMIx).
struct World {
  int size = 1;
  std::string ranks_are;  // "threads of this process" or "processes of mpirun -n 4"
};
absl::StatusOr<World> FindWorld(int requested);

// Returns when all ranks have ended. A rank that does not come back within a grace time after the group has failed cannot
// be ended as a thread: the process then says so and exits with status 1.
absl::Status RunRanks(const RankOptions& options, FunctionRef<void(Rank&)> body);

}  // namespace tessera::zero
