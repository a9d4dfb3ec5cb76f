// SPDX-License-Identifier: Apache-2.0
// Who started this process, read from the environment: nobody, mpirun, or srun with PMIx. Inside zero only.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera::zero {

struct Launcher {
  bool mpi = false;     // MPI joins the processes
  int size = 1;         // how many there are
  std::string command;  // "mpirun -n 4", for messages
};

// An error where the environment is that of a launcher that cannot be honoured. `get` is getenv.
absl::StatusOr<Launcher> FindLauncher(const char* (*get)(const char* name));
absl::StatusOr<Launcher> FindLauncher();

// The world that a request for `world_size` ranks (1: no wish) gets.
absl::StatusOr<int> WorldSizeUnder(const Launcher& launcher, int world_size);

}  // namespace tessera::zero
