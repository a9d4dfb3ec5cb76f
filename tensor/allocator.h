// SPDX-License-Identifier: Apache-2.0
// Memory with an owner: every block carries a tag, and the counts by tag are exact at any moment.
//
// The tags are product code. The memory benchmark, the planner and the out-of-memory report read them.
//
//   AllocatorStats before = CpuAllocator().stats();
//   void* p = CpuAllocator().Allocate(4096, MemoryTag::kActivations);
//   CpuAllocator().Free(p, 4096, MemoryTag::kActivations);
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace tessera {

enum class MemoryTag : uint8_t {
  kParams,
  kGrads,
  kStates,       // optimizer moments and master weights
  kGatherSlots,  // full parameters that exist for the time of their use
  kGradSlots,    // full gradients on their way to being reduced
  kActivations,
  kWorkspace,
  kStaging,
};
inline constexpr int kMemoryTagCount = 8;
std::string_view Name(MemoryTag tag);

struct AllocatorStats {
  std::array<int64_t, kMemoryTagCount> bytes_by_tag{};  // as requested, alive now
  std::array<int64_t, kMemoryTagCount> peak_by_tag{};   // each tag's own highest, not at one moment
  int64_t bytes = 0;                                    // as requested, alive now
  int64_t peak_bytes = 0;
  int64_t reserved_bytes = 0;  // taken from the system: alive blocks rounded up, and free ones kept for reuse
  int64_t allocation_count = 0;
  int64_t system_allocation_count = 0;  // allocations that had to ask the system

  int64_t operator[](MemoryTag tag) const { return bytes_by_tag[static_cast<size_t>(tag)]; }
};

// Counts first, then hands out memory. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // Aligned to 64 bytes; nullptr for 0 bytes. Throws Error with the counts by tag when the memory is not to be had.
  void* Allocate(int64_t bytes, MemoryTag tag);
  void Free(void* data, int64_t bytes, MemoryTag tag);

  AllocatorStats stats() const;
  void ResetPeaks();
  // Gives free blocks back to the system.
  virtual void ReleaseCached() {}

 protected:
  virtual void* Take(int64_t bytes) = 0;
  virtual void Give(void* data, int64_t bytes) = 0;
  virtual int64_t reserved_bytes(int64_t alive_bytes) const = 0;
  virtual int64_t system_allocation_count() const = 0;

 private:
  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, MemoryTag tag) const;

  mutable std::mutex mutex_;
  AllocatorStats stats_;
};

// Host memory in size classes an eighth of a power of two apart, kept for reuse: a training step asks for the same
// sizes again and again, and fresh pages cost more than the arithmetic on them. Under AddressSanitizer nothing is kept.
class HostAllocator final : public Allocator {
 public:
  HostAllocator();
  ~HostAllocator() override;
  void ReleaseCached() override;
  // A limit on reserved bytes, for tests of the out-of-memory report; 0 = none.
  void SetLimit(int64_t bytes) { limit_bytes_ = bytes; }

 protected:
  void* Take(int64_t bytes) override;
  void Give(void* data, int64_t bytes) override;
  int64_t reserved_bytes(int64_t) const override { return reserved_bytes_; }
  int64_t system_allocation_count() const override { return system_allocation_count_; }

 private:
  static constexpr int kClassCount = 512;
  static int SizeClass(int64_t bytes, int64_t* rounded_bytes);
  static int64_t ClassBytes(int size_class);
  // Gives back the free blocks of the sizes that were longest not asked for, until no more than this is reserved.
  void TrimLocked(int64_t reserved_at_most);

  std::mutex mutex_;
  std::array<std::vector<void*>, kClassCount> free_;
  std::array<uint64_t, kClassCount> last_request_{};
  uint64_t request_count_ = 0;
  std::atomic<int64_t> reserved_bytes_{0};
  std::atomic<int64_t> system_allocation_count_{0};
  int64_t alive_bytes_ = 0;  // as requested
  int64_t peak_alive_bytes_ = 0;
  int64_t limit_bytes_ = 0;
};

// Hands out no memory at all: for the meta device, where only the counts are wanted.
class CountingAllocator final : public Allocator {
 protected:
  void* Take(int64_t) override { return nullptr; }
  void Give(void*, int64_t) override {}
  int64_t reserved_bytes(int64_t alive_bytes) const override { return alive_bytes; }
  int64_t system_allocation_count() const override { return 0; }
};

// The process's shared allocators. They are never destroyed: tensors with static lifetime may outlive main().
Allocator& CpuAllocator();
Allocator& MetaAllocator();

}  // namespace tessera
