// SPDX-License-Identifier: Apache-2.0
#include "zero/slot_pool.h"

#include <atomic>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "tensor/allocator.h"
#include "tensor/context.h"

namespace tessera::zero {
namespace {

const void* AddressOf(const Tensor& slot) { return slot.Read().data; }

TEST(SlotPool, HandsOutTheSameSlotAgain) {
  SlotPool pool({});
  Tensor first = pool.Acquire(64, DType::kF32);
  const void* address = AddressOf(first);
  pool.Release(std::move(first));
  EXPECT_EQ(AddressOf(pool.Acquire(64, DType::kF32)), address);
  EXPECT_EQ(pool.held_numel(), 64);
}

TEST(SlotPool, SizesAndDtypesHaveSlotsOfTheirOwn) {
  SlotPool pool({});
  Tensor first = pool.Acquire(64, DType::kF32);
  const void* address = AddressOf(first);
  pool.Release(std::move(first));
  EXPECT_NE(AddressOf(pool.Acquire(63, DType::kF32)), address);
  const Tensor half = pool.Acquire(64, DType::kBF16);
  EXPECT_NE(AddressOf(half), address);
  EXPECT_EQ(half.dtype(), DType::kBF16);
  EXPECT_EQ(pool.held_numel(), 64 + 63 + 64);
}

TEST(SlotPool, SlotsInUseAreNeverShared) {
  SlotPool pool({.keep_per_class = 1});
  const Tensor a = pool.Acquire(8, DType::kF32), b = pool.Acquire(8, DType::kF32);
  EXPECT_NE(AddressOf(a), AddressOf(b));
  EXPECT_EQ(pool.held_numel(), 16);
}

TEST(SlotPool, MoreThanItKeepsAreDroppedWhenTheyComeBack) {
  SlotPool pool({.keep_per_class = 1});
  Tensor a = pool.Acquire(8, DType::kF32), b = pool.Acquire(8, DType::kF32);
  pool.Release(std::move(a));
  pool.Release(std::move(b));
  EXPECT_EQ(pool.held_numel(), 8);
}

TEST(SlotPool, HasRoomUntilAllItKeepsAreInUse) {
  SlotPool pool({.keep_per_class = 2});
  EXPECT_TRUE(pool.HasRoom(8, DType::kF32));
  Tensor a = pool.Acquire(8, DType::kF32);
  EXPECT_TRUE(pool.HasRoom(8, DType::kF32));
  const Tensor b = pool.Acquire(8, DType::kF32);
  EXPECT_FALSE(pool.HasRoom(8, DType::kF32));
  EXPECT_TRUE(pool.HasRoom(9, DType::kF32));
  pool.Release(std::move(a));
  EXPECT_TRUE(pool.HasRoom(8, DType::kF32));
}

TEST(SlotPool, ShrinkDropsFreeSlotsAndNoneInUse) {
  SlotPool pool({.keep_per_class = 2});
  Tensor a = pool.Acquire(10, DType::kF32), b = pool.Acquire(20, DType::kF32);
  const Tensor used = pool.Acquire(40, DType::kF32);
  pool.Release(std::move(a));
  pool.Release(std::move(b));
  pool.Shrink(65);
  EXPECT_EQ(pool.held_numel(), 60);  // the first free one was enough
  pool.Shrink(0);
  EXPECT_EQ(pool.held_numel(), 40);
}

TEST(SlotPool, ASlotIsNotHandedOutBeforeTheWorkThatReadsIt) {
  SlotPool pool({.keep_per_class = 1});
  Stream worker(StreamKind::kWorker);
  std::atomic<bool> go = false, done = false;
  worker.Run([&] {
    while (!go) std::this_thread::yield();
    done = true;
  });
  Event after;
  after.Record(worker);
  pool.Release(pool.Acquire(8, DType::kF32), after);
  std::thread opener([&] { go = true; });
  const Tensor again = pool.Acquire(8, DType::kF32);
  EXPECT_TRUE(done);
  opener.join();
}

TEST(SlotPool, AFreeSlotThatIsStillReadGivesWayToOneThatIsNot) {
  SlotPool pool({.keep_per_class = 2});
  Stream worker(StreamKind::kWorker);
  std::atomic<bool> go = false;
  worker.Run([&] {
    while (!go) std::this_thread::yield();
  });
  Event after;
  after.Record(worker);
  Tensor busy = pool.Acquire(8, DType::kF32), idle = pool.Acquire(8, DType::kF32);
  const void* idle_address = AddressOf(idle);
  pool.Release(std::move(busy), after);
  pool.Release(std::move(idle));
  EXPECT_EQ(AddressOf(pool.Acquire(8, DType::kF32)), idle_address);
  go = true;
}

TEST(SlotPool, PoisonedSlotsReadNaNOnceTheyAreHandedBack) {
  SlotPool pool({.poison = true});
  Tensor slot = pool.Acquire(3, DType::kF64);
  const Tensor stale = slot;
  pool.Release(std::move(slot));
  for (double value : stale.ToVector()) EXPECT_TRUE(std::isnan(value));
}

TEST(SlotPool, SteadyUseAllocatesNothingAndItsMemoryIsCountedUnderItsTag) {
  HostAllocator allocator;
  Context context = CurrentContext();
  context.cpu_allocator = &allocator;
  const ContextGuard guard(context);
  SlotPool pool({.tag = MemoryTag::kGradSlots, .keep_per_class = 2});
  int64_t allocations = 0;
  for (int round = 0; round < 5; ++round) {
    Tensor a = pool.Acquire(100, DType::kF32), b = pool.Acquire(100, DType::kF32);
    pool.Release(std::move(a));
    pool.Release(std::move(b));
    if (round == 0) allocations = allocator.stats().allocation_count;
  }
  EXPECT_EQ(allocator.stats().allocation_count, allocations);
  EXPECT_EQ(allocator.stats()[MemoryTag::kGradSlots], 800);
}

TEST(SlotPool, EmptySlotsAreLegalAndThereIsAlwaysRoomForOneMore) {
  SlotPool pool({.keep_per_class = 1, .poison = true});
  Tensor slot = pool.Acquire(0, DType::kF32);
  EXPECT_EQ(slot.numel(), 0);
  EXPECT_TRUE(pool.HasRoom(0, DType::kF32));
  pool.Release(std::move(slot));
}

}  // namespace
}  // namespace tessera::zero
