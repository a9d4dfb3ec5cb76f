// SPDX-License-Identifier: Apache-2.0
// A pool of sleeping workers that any number of threads may call at once.
//
// The caller works too, and the workers go round the open loops one chunk at a time, so N ranks in one process share
// them fairly. Nobody spins: on a shared machine a spinning pool starves the very thread it waits for.
// Chunk borders depend on `grain` alone, never on the number of threads: a reduction that adds its chunks' results in
// order gives the same bits on any machine.
//
//   ParallelFor(rows, 64, [&](int64_t begin, int64_t end) { ... });
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tensor/function_ref.h"

namespace tessera {

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of 2 has one worker.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body on [0, n) cut into chunks of `grain`; returns when all are done. The first exception is rethrown here.
  // A body that calls ParallelFor itself runs that inner loop alone.
  void ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

  // The process's pool: TESSERA_NUM_THREADS threads, or as many as the process may run on.
  static ThreadPool& Global();

 private:
  struct Loop;
  void Work();
  static bool RunOneChunk(Loop& loop);

  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<Loop*> open_loops_;
  size_t next_loop_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// On the current Context's pool.
void ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

// How many threads the current Context's pool has.
int NumThreads();

}  // namespace tessera
