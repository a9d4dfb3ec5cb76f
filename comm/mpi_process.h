// SPDX-License-Identifier: Apache-2.0
// This process in its MPI job: MPI's start and end, and the short messages of ledger boards. <mpi.h> stays in .cc files.
//
//   const MpiProcess& process = StartMpi(timeout_s);   // MPI_Init, once; MPI_Finalize comes when the process exits
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/message_board.h"
#include "tensor/stream.h"

namespace tessera::comm {

struct MpiProcess {
  int rank = 0;
  int size = 1;
  int ranks_on_host = 1;
  int ranks_on_my_processors = 1;  // how many of them may use processors that this one may use
  std::string host;
};

// Safe to call again. `timeout_s`: how long the other processes may keep this one waiting in MPI_Init, before it says so
// and exits with status 1.
const MpiProcess& StartMpi(double timeout_s);

// Ends every process of the job with this status. What is on stderr goes out first.
[[noreturn]] void EndMpiJob(int status);

// ---- inside comm only, after StartMpi ----

void CheckMpi(int result, const char* call);  // throws Error
// Throws where the library cannot be used from a thread like this one, or the stream's.
void RequireMpiThreads(StreamKind kind);
int MpiTagOf(uint64_t number);
// A family of the job's first `size` processes; all of them make theirs in the same order. Its messages go by this process.
std::shared_ptr<MessageFamily> MakeMpiFamily(int size);

}  // namespace tessera::comm
