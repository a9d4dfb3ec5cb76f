// SPDX-License-Identifier: Apache-2.0
#include "zero/launcher.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "tensor/error.h"

namespace tessera::zero {

absl::StatusOr<Launcher> FindLauncher(const char* (*get)(const char* name)) {
  const auto number = [get](const char* name) {
    const char* text = get(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  if (const int size = number("OMPI_COMM_WORLD_SIZE"); size > 0) {
    return Launcher{.mpi = true, .size = size, .command = Str("mpirun -n ", size)};
  }
  if (const int size = number("SLURM_STEP_NUM_TASKS"); size > 0 && get("PMIX_RANK") != nullptr) {
    return Launcher{.mpi = true, .size = size, .command = Str("srun -n ", size)};
  } else if (size > 1) {
    return absl::InvalidArgumentError(Str("ranks: srun has started ", size,
                                          " tasks that do not know of each other; start them with srun --mpi=pmix -n ",
                                          size, ", or use mpirun -n ", size, " inside the allocation"));
  }
  const char *rank = get("RANK"), *size = get("WORLD_SIZE");
  if (rank != nullptr && size != nullptr) {
    return absl::InvalidArgumentError(Str("ranks: RANK=", rank, " and WORLD_SIZE=", size,
                                          " are set, as torchrun sets them, but this program starts its "
                                          "ranks otherwise: type mpirun -n ",
                                          size, " PROGRAM, or PROGRAM --num_gpus ", size,
                                          "; where no other launcher is meant, unset both variables"));
  }
  return Launcher{};
}

absl::StatusOr<Launcher> FindLauncher() {
  return FindLauncher([](const char* name) -> const char* { return std::getenv(name); });
}

absl::StatusOr<int> WorldSizeUnder(const Launcher& launcher, int world_size) {
  if (world_size < 1)
    return absl::InvalidArgumentError(Str("ranks: a world of ", world_size, " ranks, expected at least 1"));
  if (!launcher.mpi || launcher.size == world_size) return world_size;
  if (world_size == 1) return launcher.size;
  return absl::InvalidArgumentError(Str("ranks: --num_gpus ", world_size, " under ", launcher.command,
                                        ": leave --num_gpus away, or give -n ", world_size));
}

}  // namespace tessera::zero
