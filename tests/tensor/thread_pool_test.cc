// SPDX-License-Identifier: Apache-2.0
#include "tensor/thread_pool.h"

#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tensor/context.h"

namespace tessera::testing {
namespace {

using std::chrono::milliseconds;
using Chunks = std::set<std::pair<int64_t, int64_t>>;

Chunks ChunksOf(ThreadPool& pool, int64_t n, int64_t grain) {
  Chunks chunks;
  std::mutex mutex;
  pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(chunks.emplace(begin, end).second) << "twice: " << begin;
  });
  return chunks;
}

TEST(ThreadPool, CutsAtMultiplesOfTheGrainWhateverTheThreads) {
  ThreadPool one(1), three(3);
  for (const int64_t n : {0, 1, 7, 8, 9, 100, 1001}) {
    for (const int64_t grain : {0, 1, 8, 100, 5000}) {
      Chunks expected;
      const int64_t step = std::max<int64_t>(grain, 1);
      for (int64_t begin = 0; begin < n; begin += step) expected.emplace(begin, std::min(begin + step, n));
      EXPECT_EQ(ChunksOf(one, n, grain), expected) << n << " by " << grain;
      EXPECT_EQ(ChunksOf(three, n, grain), expected) << n << " by " << grain;
    }
  }
  EXPECT_TRUE(ChunksOf(three, -5, 1).empty());
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    try {
      pool.ParallelFor(1000, 1, [&](int64_t begin, int64_t) {
        if (begin >= 10) throw std::runtime_error("chunk " + std::to_string(begin));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 6), "chunk ");
    }
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(1000, 7, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 1000);
  }
}

TEST(ThreadPool, RunsALoopInsideALoopOnTheThreadThatAsked) {
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  pool.ParallelFor(50, 1, [&](int64_t, int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    pool.ParallelFor(100, 10, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      total += end - begin;
    });
  });
  EXPECT_EQ(total, 5000);
}

TEST(ThreadPool, ServesSeveralCallersAtOnce) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&pool, caller] {
      for (int round = 0; round < 100; ++round) {
        std::vector<int64_t> squares(static_cast<size_t>(200 + caller));
        pool.ParallelFor(static_cast<int64_t>(squares.size()), 5, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) squares[static_cast<size_t>(i)] = i * i;
        });
        for (size_t i = 0; i < squares.size(); ++i) ASSERT_EQ(squares[i], static_cast<int64_t>(i * i));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, AShortLoopDoesNotWaitForALongOne) {
  ThreadPool pool(2);
  std::atomic<int> long_chunks{0};
  std::thread long_caller([&] {
    pool.ParallelFor(300, 1, [&](int64_t, int64_t) {
      std::this_thread::sleep_for(milliseconds(2));
      ++long_chunks;
    });
  });
  while (long_chunks == 0) std::this_thread::yield();
  pool.ParallelFor(4, 1, [&](int64_t, int64_t) { std::this_thread::sleep_for(milliseconds(2)); });
  EXPECT_LT(long_chunks, 300);
  long_caller.join();
  EXPECT_EQ(long_chunks, 300);
}

TEST(ThreadPool, WorkersGoRoundTheOpenLoops) {
  // Both callers sit in a chunk of their own loop, so that the one worker does the rest: it must serve the loops in turn.
  ThreadPool pool(2);
  std::atomic<bool> open[2] = {false, false};
  std::atomic<int> served[2] = {0, 0};
  const auto enough = [&] { return served[0] + served[1] >= 40; };
  std::vector<std::thread> callers;
  for (int loop = 0; loop < 2; ++loop) {
    callers.emplace_back([&, loop] {
      const std::thread::id self = std::this_thread::get_id();
      pool.ParallelFor(100000, 1, [&](int64_t, int64_t) {
        if (std::this_thread::get_id() == self) {
          open[loop] = true;
          while (!enough()) std::this_thread::sleep_for(milliseconds(1));
        } else if (!open[0] || !open[1]) {
          std::this_thread::sleep_for(milliseconds(1));
        } else if (!enough()) {
          ++served[loop];
        }
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(served[0], 19);
  EXPECT_GE(served[1], 19);
}

TEST(ThreadPool, DoesNotSpinWhileItWaits) {
  ThreadPool pool(3);
  pool.ParallelFor(30, 1, [](int64_t, int64_t) {});
  const auto cpu_seconds = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(cpu_seconds() - before, 0.05);
}

TEST(ThreadPool, IsThatOfTheContext) {
  ThreadPool pool(4);
  Context context;
  context.thread_pool = &pool;
  {
    const ContextGuard guard(context);
    EXPECT_EQ(NumThreads(), 4);
    std::atomic<int64_t> sum{0};
    ParallelFor(100, 3, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 100);
  }
  EXPECT_EQ(NumThreads(), ThreadPool::Global().threads());
}

}  // namespace
}  // namespace tessera::testing
