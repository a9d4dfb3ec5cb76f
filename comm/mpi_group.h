// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of an MPI job (mpirun, or srun with PMIx), for tensors on the CPU.
//
//   const MpiProcess& process = StartMpi(timeout_s);       // MPI_Init, once; MPI_Finalize comes when the process exits
//   MpiGroup group(process.size);
//   {
//     Ledger comm(group.Rank(), group.board());
//     ...
//   }
//   group.family().MarkFinished();
//   if (!group.family().AwaitAllFinished()) EndMpiJob(1);
//
// Data goes from process to process in messages of at most 1 GiB, and every rank sums what it receives, in rank order. Stream
// collectives, host exchanges and the messages of the ledger's board have an MPI communicator each, so that they never mix.
// Every wait polls, gives the processor away, and ends with the group. A ledger belongs in front: without it nothing compares
// stream calls, and MPI may write past a buffer that a longer message comes for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "comm/message_board.h"
#include "comm/mpi_process.h"

namespace tessera::comm {

struct MpiOptions {
  double timeout_s = 600;  // as ThreadGroup::SetTimeout
  int64_t longest_message_bytes = int64_t{1} << 30;
};

// The group of the job's first `size` processes, each of which makes one; collective over them.
class MpiGroup {
 public:
  explicit MpiGroup(int size, const MpiOptions& options = {});
  ~MpiGroup();  // the communicators live on
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  std::unique_ptr<Communicator> Rank();  // this process's; once
  std::shared_ptr<LedgerBoard> board();  // for a ledger in front of it
  MessageFamily& family();

  struct Comms;

 private:
  std::shared_ptr<Comms> comms_;
};

}  // namespace tessera::comm
