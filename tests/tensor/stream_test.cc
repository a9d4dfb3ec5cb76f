// SPDX-License-Identifier: Apache-2.0
#include "tensor/stream.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/context.h"
#include "tensor/error.h"
#include "tensor/thread_pool.h"

namespace tessera::testing {
namespace {

// Holds a worker until it is opened, so that what must wait has something to wait for.
class Lock {
 public:
  void Hold(Stream& stream) {
    stream.Run([open = open_] {
      while (!*open) std::this_thread::yield();
    });
  }
  void Open() { *open_ = true; }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

std::string ErrorOf(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Stream, AnInlineOneRunsItsWorkAtOnceOnTheCaller) {
  Stream stream(StreamKind::kInline);
  std::thread::id where;
  stream.Run([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_EQ(ErrorOf([&] { stream.Run([] { throw Error("at once"); }); }), "at once");
  stream.Synchronize();  // the caller has the error; the stream keeps none
}

TEST(Stream, AWorkerRunsItsWorkInOrderOnOneOtherThread) {
  Stream stream(StreamKind::kWorker);
  std::vector<int> order;  // no lock: one thread at a time, and Synchronize is a happens-before
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 1000; ++i) {
    stream.Run([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  stream.Synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
  for (const std::thread::id& thread : threads)
    ASSERT_TRUE(thread == threads[0] && thread != std::this_thread::get_id());
}

TEST(Stream, AWorkerDoesNotHoldUpItsCaller) {
  Stream stream(StreamKind::kWorker);
  Lock lock;
  lock.Hold(stream);
  bool ran = false;
  stream.Run([&] { ran = true; });
  Event event;
  event.Record(stream);
  EXPECT_FALSE(event.done());
  lock.Open();
  event.Synchronize();
  EXPECT_TRUE(event.done());
  EXPECT_TRUE(ran);
}

TEST(Stream, WaitingForAnEventOrdersTwoWorkers) {
  Stream first(StreamKind::kWorker), second(StreamKind::kWorker);
  int value = 0;  // written by one worker, read by the other
  for (int turn = 1; turn <= 200; ++turn) {
    Event written, read;
    first.Run([&, turn] { value = turn; });
    written.Record(first);
    second.Wait(written);
    second.Run([&, turn] { EXPECT_EQ(value, turn); });
    read.Record(second);
    first.Wait(read);
  }
  first.Synchronize();
  second.Synchronize();
}

TEST(Stream, AnInlineOneWaitsForAnEventOnItsCaller) {
  Stream side(StreamKind::kWorker), compute(StreamKind::kInline);
  Lock lock;
  lock.Hold(side);
  int value = 0;
  side.Run([&] { value = 7; });
  Event event;
  event.Record(side);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    lock.Open();
  });
  compute.Wait(event);
  EXPECT_EQ(value, 7);
  opener.join();
}

TEST(Stream, AnErrorDropsWhatIsQueuedBehindAndReachesEveryWait) {
  Stream stream(StreamKind::kWorker), other(StreamKind::kWorker), compute(StreamKind::kInline);
  Lock lock;
  Event before, after;
  bool ran = false, other_ran = false;
  lock.Hold(stream);
  before.Record(stream);
  stream.Run([] { throw Error("the work's own"); });
  stream.Run([&] { ran = true; });
  after.Record(stream);
  other.Wait(after);
  other.Run([&] { other_ran = true; });
  lock.Open();
  before.Synchronize();  // this point came before the error
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(ErrorOf([&] { after.Synchronize(); }), "the work's own");
    EXPECT_EQ(ErrorOf([&] { stream.Synchronize(); }), "the work's own");
    EXPECT_EQ(ErrorOf([&] { compute.Wait(after); }), "the work's own");
    EXPECT_EQ(ErrorOf([&] { other.Synchronize(); }), "the work's own");
  }
  EXPECT_FALSE(after.done());
  EXPECT_FALSE(ran);
  EXPECT_FALSE(other_ran);
}

TEST(Stream, ItsEndWaitsForQueuedWork) {
  std::atomic<int> ran{0};
  {
    Stream stream(StreamKind::kWorker);
    for (int i = 0; i < 50; ++i) {
      stream.Run([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        ++ran;
      });
    }
  }
  EXPECT_EQ(ran, 50);
}

TEST(Stream, WhatItsWorkCapturesLivesUntilTheWorkHasRunAndNotLonger) {
  Stream stream(StreamKind::kWorker);
  Lock lock;
  lock.Hold(stream);
  auto captured = std::make_shared<int>(5);
  const std::weak_ptr<int> alive = captured;
  int read = 0;
  stream.Run([&read, captured = std::move(captured)] { read = *captured; });
  EXPECT_FALSE(alive.expired());
  lock.Open();
  stream.Synchronize();
  EXPECT_EQ(read, 5);
  EXPECT_TRUE(alive.expired());
}

TEST(Stream, AnEventOutlivesItsStreamAndANewOneCountsAsReached) {
  Event event, fresh;
  EXPECT_TRUE(fresh.done());
  fresh.Synchronize();
  {
    Stream stream(StreamKind::kWorker);
    stream.Run([] {});
    event.Record(stream);
  }
  EXPECT_TRUE(event.done());
  event.Synchronize();
}

TEST(Stream, RecordingAgainMovesTheEventAndLeavesItsCopies) {
  Stream stream(StreamKind::kWorker);
  Event event;
  event.Record(stream);
  const Event early = event;
  early.Synchronize();
  Lock lock;
  lock.Hold(stream);
  event.Record(stream);
  EXPECT_TRUE(early.done());
  EXPECT_FALSE(event.done());
  lock.Open();
  event.Synchronize();
}

TEST(Stream, AWorkerHasItsMakersContextAndAPoolOfItsOwn) {
  Context context = CurrentContext();
  context.seed = 1234;
  context.rank = 3;
  const ContextGuard guard(context);
  Stream stream(StreamKind::kWorker);
  uint64_t seed = 0;
  int64_t rank = 0;
  int threads = 0;
  stream.Run([&] {
    seed = CurrentContext().seed;
    rank = CurrentContext().rank;
    threads = NumThreads();
  });
  stream.Synchronize();
  EXPECT_EQ(seed, 1234u);
  EXPECT_EQ(rank, 3);
  EXPECT_EQ(threads, 1);
}

}  // namespace
}  // namespace tessera::testing
