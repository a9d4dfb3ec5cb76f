// SPDX-License-Identifier: Apache-2.0
#include "tensor/allocator.h"

#include <cstring>
#include <regex>
#include <thread>

#include "tensor/context.h"
#include "tensor/rng.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepsFreeBlocks = false;
#else
constexpr bool kKeepsFreeBlocks = true;
#endif

struct Block {
  void* data;
  int64_t bytes;
  MemoryTag tag;
};

Block Take(Allocator& allocator, int64_t bytes, MemoryTag tag) { return {allocator.Allocate(bytes, tag), bytes, tag}; }
void Give(Allocator& allocator, const Block& block) { allocator.Free(block.data, block.bytes, block.tag); }

TEST(Allocator, CountsExactlyByTag) {
  HostAllocator allocator;
  const Block params = Take(allocator, 1000, MemoryTag::kParams);
  const Block grads = Take(allocator, 77, MemoryTag::kGrads);
  const Block more = Take(allocator, 5000, MemoryTag::kParams);
  AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats[MemoryTag::kParams], 6000);
  EXPECT_EQ(stats[MemoryTag::kGrads], 77);
  EXPECT_EQ(stats[MemoryTag::kStates], 0);
  EXPECT_EQ(stats.bytes, 6077);
  EXPECT_EQ(stats.peak_bytes, 6077);
  EXPECT_EQ(stats.allocation_count, 3);
  EXPECT_GE(stats.reserved_bytes, stats.bytes);
  Give(allocator, more);
  Give(allocator, grads);
  stats = allocator.stats();
  EXPECT_EQ(stats[MemoryTag::kParams], 1000);
  EXPECT_EQ(stats.peak_by_tag[static_cast<size_t>(MemoryTag::kParams)], 6000);
  EXPECT_EQ(stats.bytes, 1000);
  EXPECT_EQ(stats.peak_bytes, 6077);
  allocator.ResetPeaks();
  EXPECT_EQ(allocator.stats().peak_bytes, 1000);
  EXPECT_EQ(allocator.stats().peak_by_tag[static_cast<size_t>(MemoryTag::kGrads)], 0);
  Give(allocator, params);
  allocator.ReleaseCached();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
}

TEST(Allocator, GivesAlignedMemoryOfEverySize) {
  HostAllocator allocator;
  EXPECT_EQ(allocator.Allocate(0, MemoryTag::kParams), nullptr);
  allocator.Free(nullptr, 0, MemoryTag::kParams);
  for (const int64_t bytes : {1, 63, 64, 65, 100, 127, 128, 129, 1000, 4095, 4097, 100003, 2097153, 4194305}) {
    const Block block = Take(allocator, bytes, MemoryTag::kWorkspace);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0u) << bytes;
    std::memset(block.data, 0xAB, static_cast<size_t>(bytes));
    Give(allocator, block);
  }
  EXPECT_EQ(allocator.stats().bytes, 0);
}

TEST(Allocator, ReusesBlocksSoThatASteadyStepAsksTheSystemForNothing) {
  if (!kKeepsFreeBlocks) GTEST_SKIP() << "keeps no free blocks under AddressSanitizer";
  HostAllocator allocator;
  int64_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<Block> blocks;
    for (int64_t size = 1000; size < 400000; size = size * 5 / 4) {
      blocks.push_back(Take(allocator, size, MemoryTag::kActivations));
    }
    for (const Block& block : blocks) Give(allocator, block);
    if (step == 0) after_first = allocator.stats().system_allocation_count;
  }
  EXPECT_GT(after_first, 0);
  EXPECT_EQ(allocator.stats().system_allocation_count, after_first);
}

TEST(Allocator, FindsRoomAmongFreedBlocksOrSaysExactlyWhyNot) {
  HostAllocator allocator;
  allocator.SetLimit(2048 * kMiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 100; ++i) {
    const MemoryTag tags[] = {MemoryTag::kParams, MemoryTag::kGrads, MemoryTag::kActivations, MemoryTag::kActivations};
    blocks.push_back(Take(allocator, 16 * kMiB, tags[i % 4]));
  }
  for (size_t i = 0; i < blocks.size(); i += 2) Give(allocator, blocks[i]);
  // 800 MiB in use, 800 MiB free in pieces of 16: room for 600 in one piece has to be made.
  const Block large = Take(allocator, 600 * kMiB, MemoryTag::kStates);
  EXPECT_EQ(allocator.stats().bytes, 1400 * kMiB);
  EXPECT_LE(allocator.stats().reserved_bytes, 2048 * kMiB);
  const std::string message = ErrorOf([&] { allocator.Allocate(700 * kMiB, MemoryTag::kGatherSlots); });
  std::smatch numbers;
  ASSERT_TRUE(std::regex_search(
      message, numbers,
      std::regex("^out of memory: 734003200 bytes for gather slots are not to be had; in use (\\d+), reserved (\\d+), "
                 "free in reserve (\\d+); states 629145600")))
      << message;
  EXPECT_EQ(std::stoll(numbers[1]), 1400 * kMiB);
  EXPECT_EQ(std::stoll(numbers[1]) + std::stoll(numbers[3]), std::stoll(numbers[2]));
  int64_t by_tag = 0;
  int tags = 0;
  const std::regex tag_count(
      "(parameters|gradients|states|gather slots|gradient slots|activations|workspace|staging) (\\d+)");
  const std::string list = message.substr(message.find(';', message.find("free in reserve")));
  for (std::sregex_iterator it(list.begin(), list.end(), tag_count), end; it != end; ++it, ++tags) {
    by_tag += std::stoll((*it)[2]);
  }
  EXPECT_GE(tags, 3);
  EXPECT_EQ(by_tag, 1400 * kMiB);
  // The failure cost nothing: what fits is still to be had.
  EXPECT_EQ(allocator.stats().bytes, 1400 * kMiB);
  const Block small = Take(allocator, 500 * kMiB, MemoryTag::kWorkspace);
  Give(allocator, small);
  Give(allocator, large);
  for (size_t i = 1; i < blocks.size(); i += 2) Give(allocator, blocks[i]);
  EXPECT_EQ(allocator.stats().bytes, 0);
}

TEST(Allocator, VariableLengthsDoNotPileUpFreeMemory) {
  HostAllocator allocator;
  const RngKey key(6);
  const Block params = Take(allocator, 40 * kMiB, MemoryTag::kParams);
  int64_t most_reserved = 0;
  const uint64_t steps = kKeepsFreeBlocks ? 1000 : 50;  // nothing can pile up without them
  for (uint64_t step = 0; step < steps; ++step) {
    const int64_t length = 1 + key.Bits(step) % 2048;
    std::vector<Block> saved;
    for (int layer = 0; layer < 12; ++layer) {
      const Block work = Take(allocator, length * length, MemoryTag::kWorkspace);
      saved.push_back(Take(allocator, length * 3072, MemoryTag::kActivations));
      saved.push_back(Take(allocator, length * 1024, MemoryTag::kActivations));
      Give(allocator, work);
    }
    for (; !saved.empty(); saved.pop_back()) Give(allocator, saved.back());
    most_reserved = std::max(most_reserved, allocator.stats().reserved_bytes);
  }
  const double ratio = static_cast<double>(most_reserved) / static_cast<double>(allocator.stats().peak_bytes);
  EXPECT_LE(ratio, 1.25);
  Give(allocator, params);
}

TEST(Allocator, IsSafeOnManyThreads) {
  HostAllocator allocator;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&allocator, thread] {
      const MemoryTag tag = static_cast<MemoryTag>(thread);
      for (int round = 0; round < 500; ++round) {
        const Block a = Take(allocator, 100 + round, tag), b = Take(allocator, 10000 + 10 * round, tag);
        std::memset(a.data, thread, static_cast<size_t>(a.bytes));
        std::memset(b.data, thread, static_cast<size_t>(b.bytes));
        Give(allocator, a);
        if (round % 100 == 0) allocator.ReleaseCached();
        Give(allocator, b);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats.bytes, 0);
  EXPECT_EQ(stats.allocation_count, 4000);
  for (int64_t bytes : stats.bytes_by_tag) EXPECT_EQ(bytes, 0);
}

TEST(Allocator, OfTheMetaDeviceOnlyCounts) {
  const AllocatorStats before = MetaAllocator().stats();
  const int64_t cpu_before = CpuAllocator().stats().allocation_count;
  {
    const Tensor huge = EmptyOn(kMeta, {int64_t{1} << 20, int64_t{1} << 20}, DType::kF32, MemoryTag::kStates);
    EXPECT_EQ(MetaAllocator().stats()[MemoryTag::kStates] - before[MemoryTag::kStates], int64_t{1} << 42);
    EXPECT_EQ(MetaAllocator().stats().peak_bytes, before.bytes + (int64_t{1} << 42));
    EXPECT_EQ(huge.Read().data, nullptr);
  }
  EXPECT_EQ(MetaAllocator().stats().bytes, before.bytes);
  EXPECT_EQ(CpuAllocator().stats().allocation_count, cpu_before);
}

}  // namespace
}  // namespace tessera::testing
