// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_process.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

namespace tessera::comm {
namespace {

class Process final : public Post {
 public:
  explicit Process(double timeout_s) {
    AvoidSingleCopyWhereItIsForbidden();
    Watched(timeout_s, [&] {
      CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided_), "MPI_Init_thread");
      CheckMpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
      CheckMpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
      MPI_Comm_rank(MPI_COMM_WORLD, &facts_.rank);
      MPI_Comm_size(MPI_COMM_WORLD, &facts_.size);
      LookAtHost();
    });
    int *bound = nullptr, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
    if (found != 0) largest_tag_ = *bound;
  }

  const MpiProcess& facts() const { return facts_; }
  bool spins() const { return spins_; }
  int TagOf(uint64_t number) const { return static_cast<int>(number % static_cast<uint64_t>(largest_tag_)); }

  void RequireThreads(StreamKind kind) const {
    if (provided_ == MPI_THREAD_MULTIPLE) return;
    if (kind != StreamKind::kWorker && std::this_thread::get_id() == thread_) return;
    throw Error(
        "mpi: this MPI library may be used by one thread only, so communication on a thread of its own cannot "
        "work; set overlap_comm to false, or use one that offers MPI_THREAD_MULTIPLE");
  }

  void Send(int to, std::string bytes) override {
    const std::lock_guard lock(sends_mutex_);
    if (finalized_) return;
    while (!sends_.empty()) {
      int done = 0;
      if (MPI_Test(&sends_.front().request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) break;
      sends_.pop_front();
    }
    sends_.push_back({std::move(bytes), MPI_REQUEST_NULL});
    Outgoing& out = sends_.back();  // it stays where it is: a deque
    MPI_Isend(out.bytes.data(), static_cast<int>(out.bytes.size()), MPI_BYTE, to, 0, control_, &out.request);
  }

  bool Deliver() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || finalized_) return false;
    for (bool any = false;; any = true) {
      int there = 0;
      MPI_Message message;
      MPI_Status status;
      CheckMpi(MPI_Improbe(MPI_ANY_SOURCE, 0, control_, &there, &message, &status), "MPI_Improbe");
      if (there == 0) return any;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      std::string bytes(static_cast<size_t>(size), '\0');
      CheckMpi(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, &status), "MPI_Mrecv");
      const uint64_t id = MessageFamily::IdOf(bytes);
      if (const auto family = families_.find(id); family != families_.end()) {
        family->second->Receive(status.MPI_SOURCE, bytes);
      } else if (!known_.contains(id)) {
        early_[id].emplace_back(status.MPI_SOURCE, std::move(bytes));
      }
    }
  }

  std::shared_ptr<MessageFamily> MakeFamily(int size) {
    const std::lock_guard lock(mutex_);
    // All processes of a group count the groups of its size alike.
    const uint64_t id = static_cast<uint64_t>(size) << 32 | ++groups_of_size_[size];
    auto* family = new MessageFamily(id, size, facts_.rank, spins_, *this);
    known_.insert(id);
    families_[id] = family;
    if (const auto early = early_.extract(id)) {
      for (const auto& [from, bytes] : early.mapped()) family->Receive(from, bytes);
    }
    return {family, [this, id](MessageFamily* gone) {
              {
                const std::lock_guard guard(mutex_);
                families_.erase(id);
              }
              delete gone;
            }};
  }

  void AtExit() {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, family] : families_) {
        if (family->failed() || family->finished()) continue;
        std::fprintf(stderr, "rank %d (%s): the process exits while its group is at work; this ends the job\n",
                     facts_.rank, facts_.host.c_str());
        EndMpiJob(1);
      }
    }
    const std::scoped_lock lock(mutex_, sends_mutex_);
    finalized_ = true;
    MPI_Finalize();
  }

 private:
  struct Outgoing {
    std::string bytes;
    MPI_Request request;
  };

  // Open MPI copies large messages straight from one process's memory into another's. Containers forbid that as a rule, and
  // Open MPI 4 does not notice before it fails.
  static void AvoidSingleCopyWhereItIsForbidden() {
    char from = 1, to = 0;
    const iovec source{&from, 1}, target{&to, 1};
    if (process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1) return;
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0);
  }

  // What MPI does at its start it does without a time limit.
  template <class Work>
  static void Watched(double timeout_s, Work work) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::thread watchdog([&] {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 1e8)), [&] { return done; })) return;
      const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
      std::fprintf(stderr, "rank %s: waited %.1f s in MPI_Init for processes of the job that have not come there\n",
                   rank != nullptr ? rank : "?", timeout_s);
      std::fflush(stderr);
      std::_Exit(1);
    });
    const auto end = [&] {
      {
        const std::lock_guard lock(mutex);
        done = true;
      }
      changed.notify_all();
      watchdog.join();
    };
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    end();
  }

  void LookAtHost() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    facts_.host = name;
    MPI_Comm host;
    CheckMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, facts_.rank, MPI_INFO_NULL, &host),
             "MPI_Comm_split_type");
    MPI_Comm_size(host, &facts_.ranks_on_host);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    std::vector<cpu_set_t> all(static_cast<size_t>(facts_.ranks_on_host));
    CheckMpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, host), "MPI_Allgather");
    facts_.ranks_on_my_processors = 0;
    for (cpu_set_t& theirs : all) {
      CPU_AND(&theirs, &theirs, &mine);
      if (CPU_COUNT(&theirs) > 0) ++facts_.ranks_on_my_processors;
    }
    facts_.ranks_on_my_processors = std::max(facts_.ranks_on_my_processors, 1);
    spins_ = facts_.ranks_on_my_processors <= CPU_COUNT(&mine);
    MPI_Comm_free(&host);
  }

  MpiProcess facts_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int provided_ = MPI_THREAD_SINGLE;
  int largest_tag_ = 32767;
  bool spins_ = false;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::atomic<bool> finalized_{false};

  std::mutex sends_mutex_;
  std::deque<Outgoing> sends_;

  std::mutex mutex_;  // of receiving and of all below; before a family's
  std::map<uint64_t, MessageFamily*> families_;
  std::set<uint64_t> known_;  // families that there are or were
  std::map<uint64_t, std::vector<std::pair<int, std::string>>> early_;
  std::map<int, uint32_t> groups_of_size_;
};

Process* process = nullptr;  // never destroyed: communicators may outlive main

}  // namespace

void CheckMpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(Str("mpi: ", call, ": ", std::string_view(text, static_cast<size_t>(length))));
}

const MpiProcess& StartMpi(double timeout_s) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (process == nullptr) {
    process = new Process(timeout_s);
    std::atexit([] { process->AtExit(); });
  }
  return process->facts();
}

void EndMpiJob(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  alarm(10);                                                    // should the abort hang
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // mpirun forwards our lines, then shows its own
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void RequireMpiThreads(StreamKind kind) { process->RequireThreads(kind); }
int MpiTagOf(uint64_t number) { return process->TagOf(number); }
std::shared_ptr<MessageFamily> MakeMpiFamily(int size) { return process->MakeFamily(size); }

}  // namespace tessera::comm
