// SPDX-License-Identifier: Apache-2.0
#include "tensor/thread_pool.h"

#include <algorithm>
#include <cstdlib>

#include <sched.h>

#include "tensor/context.h"

namespace tessera {

struct ThreadPool::Loop {
  FunctionRef<void(int64_t, int64_t)> body;
  int64_t n;
  int64_t grain;
  std::atomic<int64_t> next{0};
  int users = 0;  // workers inside this loop; guarded by the pool's mutex
  std::exception_ptr error;
  std::mutex error_mutex;
  std::condition_variable left;
};

namespace {

thread_local bool inside_loop = false;

int DefaultThreads() {
  if (const char* text = std::getenv("TESSERA_NUM_THREADS")) {
    const int threads = std::atoi(text);
    if (threads > 0) return threads;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

ThreadPool& ThreadPool::Global() {
  static ThreadPool& pool = *new ThreadPool(DefaultThreads());
  return pool;
}

bool ThreadPool::RunOneChunk(Loop& loop) {
  const int64_t begin = loop.next.fetch_add(loop.grain, std::memory_order_relaxed);
  if (begin >= loop.n) return false;
  try {
    loop.body(begin, std::min(begin + loop.grain, loop.n));
  } catch (...) {
    const std::lock_guard lock(loop.error_mutex);
    if (!loop.error) loop.error = std::current_exception();
    loop.next.store(loop.n, std::memory_order_relaxed);
  }
  return true;
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain || workers_.empty() || inside_loop) {
    // The same chunks as in parallel, so that the bits do not depend on who runs them.
    for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(begin + grain, n));
    return;
  }
  Loop loop{.body = body, .n = n, .grain = grain, .error = nullptr, .error_mutex = {}, .left = {}};
  {
    const std::lock_guard lock(mutex_);
    open_loops_.push_back(&loop);
  }
  const int64_t chunks = (n + grain - 1) / grain;
  if (chunks == 2) {
    work_.notify_one();
  } else {
    work_.notify_all();
  }
  inside_loop = true;
  while (RunOneChunk(loop)) {
  }
  inside_loop = false;
  std::unique_lock lock(mutex_);
  open_loops_.erase(std::find(open_loops_.begin(), open_loops_.end(), &loop));
  loop.left.wait(lock, [&] { return loop.users == 0; });
  lock.unlock();
  if (loop.error) std::rethrow_exception(loop.error);
}

void ThreadPool::Work() {
  inside_loop = true;
  std::unique_lock lock(mutex_);
  while (true) {
    Loop* loop = nullptr;
    for (size_t i = 0; i < open_loops_.size() && loop == nullptr; ++i) {
      Loop* candidate = open_loops_[(next_loop_ + i) % open_loops_.size()];
      if (candidate->next.load(std::memory_order_relaxed) < candidate->n) {
        loop = candidate;
        next_loop_ = (next_loop_ + i + 1) % open_loops_.size();
      }
    }
    if (loop == nullptr) {
      if (stopping_) return;
      work_.wait(lock);
      continue;
    }
    ++loop->users;
    lock.unlock();
    RunOneChunk(*loop);
    lock.lock();
    if (--loop->users == 0) loop->left.notify_all();
  }
}

void ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  CurrentContext().pool().ParallelFor(n, grain, body);
}

int NumThreads() { return CurrentContext().pool().threads(); }

}  // namespace tessera
