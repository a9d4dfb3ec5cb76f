// SPDX-License-Identifier: Apache-2.0
#include "tensor/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include <sys/mman.h>

#include "tensor/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_KEEP_FREE_BLOCKS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_KEEP_FREE_BLOCKS 0
#endif
#endif
#ifndef TESSERA_KEEP_FREE_BLOCKS
#define TESSERA_KEEP_FREE_BLOCKS 1
#endif

namespace tessera {

std::string_view Name(MemoryTag tag) {
  constexpr std::array<std::string_view, kMemoryTagCount> kNames = {
      "parameters", "gradients", "states", "gather slots", "gradient slots", "activations", "workspace", "staging"};
  return kNames[static_cast<size_t>(tag)];
}

void* Allocator::Allocate(int64_t bytes, MemoryTag tag) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  try {
    data = Take(bytes);
  } catch (const std::bad_alloc&) {
    ThrowOutOfMemory(bytes, tag);
  }
  const std::lock_guard lock(mutex_);
  int64_t& of_tag = stats_.bytes_by_tag[static_cast<size_t>(tag)];
  int64_t& peak_of_tag = stats_.peak_by_tag[static_cast<size_t>(tag)];
  of_tag += bytes;
  peak_of_tag = std::max(peak_of_tag, of_tag);
  stats_.bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.bytes);
  ++stats_.allocation_count;
  return data;
}

void Allocator::Free(void* data, int64_t bytes, MemoryTag tag) {
  if (bytes == 0) return;
  {
    const std::lock_guard lock(mutex_);
    stats_.bytes_by_tag[static_cast<size_t>(tag)] -= bytes;
    stats_.bytes -= bytes;
  }
  Give(data, bytes);
}

AllocatorStats Allocator::stats() const {
  AllocatorStats result;
  {
    const std::lock_guard lock(mutex_);
    result = stats_;
  }
  result.system_allocation_count = system_allocation_count();
  result.reserved_bytes = reserved_bytes(result.bytes);
  return result;
}

void Allocator::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  stats_.peak_by_tag = stats_.bytes_by_tag;
  stats_.peak_bytes = stats_.bytes;
}

void Allocator::ThrowOutOfMemory(int64_t bytes, MemoryTag tag) const {
  const AllocatorStats now = stats();
  std::string message =
      Str("out of memory: ", bytes, " bytes for ", Name(tag), " are not to be had; in use ", now.bytes, ", reserved ",
          now.reserved_bytes, ", free in reserve ", now.reserved_bytes - now.bytes, ";");
  std::array<size_t, kMemoryTagCount> order{};
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return now.bytes_by_tag[a] > now.bytes_by_tag[b]; });
  for (size_t i : order) message += Str(" ", Name(static_cast<MemoryTag>(i)), " ", now.bytes_by_tag[i]);
  throw Error(message);
}

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = 2 << 20;

void* SystemAllocate(int64_t bytes) {
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const int64_t padded = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(padded));
  if (data != nullptr && alignment == kHugePage) madvise(data, static_cast<size_t>(padded), MADV_HUGEPAGE);
  return data;
}

}  // namespace

HostAllocator::HostAllocator() = default;
HostAllocator::~HostAllocator() { ReleaseCached(); }

int HostAllocator::SizeClass(int64_t bytes, int64_t* rounded_bytes) {
  // Classes 2^e * (1 + k/8): at most an eighth is lost to rounding. Everything up to 64 bytes is one class.
  const uint64_t size = static_cast<uint64_t>(std::max(bytes, kAlignment)) - 1;
  const int exponent = static_cast<int>(std::bit_width(size)) - 1;
  const int shift = std::max(exponent - 3, 0);
  const uint64_t mantissa = (size >> shift) + 1;  // 9..16 eighths
  *rounded_bytes = static_cast<int64_t>(mantissa << shift);
  return exponent * 8 + static_cast<int>(mantissa - 9);
}

int64_t HostAllocator::ClassBytes(int size_class) {
  return static_cast<int64_t>(size_class % 8 + 9) << std::max(size_class / 8 - 3, 0);
}

void* HostAllocator::Take(int64_t bytes) {
  int64_t rounded;
  const int size_class = SizeClass(bytes, &rounded);
  const std::lock_guard lock(mutex_);
  last_request_[static_cast<size_t>(size_class)] = ++request_count_;
  std::vector<void*>& list = free_[static_cast<size_t>(size_class)];
  const int64_t peak = std::max(peak_alive_bytes_, alive_bytes_ + bytes);
  void* data = nullptr;
  if (!list.empty()) {
    data = list.back();
    list.pop_back();
  } else {
    // Variable lengths leave free blocks of every size behind: rather than grow past 1.25 times the most that was ever in
    // use, the longest unused ones go back to the system. A steady step never comes here.
    TrimLocked(peak + peak / 4 - rounded);
    for (int attempt = 0; attempt < 2 && data == nullptr; ++attempt) {
      if (limit_bytes_ == 0 || reserved_bytes_ + rounded <= limit_bytes_) data = SystemAllocate(rounded);
      if (data == nullptr) TrimLocked(0);
    }
    if (data == nullptr) throw std::bad_alloc();
    reserved_bytes_ += rounded;
    ++system_allocation_count_;
  }
  alive_bytes_ += bytes;
  peak_alive_bytes_ = peak;
  return data;
}

void HostAllocator::Give(void* data, int64_t bytes) {
  int64_t rounded;
  const int size_class = SizeClass(bytes, &rounded);
  const std::lock_guard lock(mutex_);
  alive_bytes_ -= bytes;
  if (TESSERA_KEEP_FREE_BLOCKS) {
    free_[static_cast<size_t>(size_class)].push_back(data);
  } else {
    std::free(data);
    reserved_bytes_ -= rounded;
  }
}

void HostAllocator::ReleaseCached() {
  const std::lock_guard lock(mutex_);
  TrimLocked(0);
}

void HostAllocator::TrimLocked(int64_t reserved_at_most) {
  while (reserved_bytes_ > reserved_at_most) {
    int oldest = -1;
    for (int size_class = 0; size_class < kClassCount; ++size_class) {
      const size_t index = static_cast<size_t>(size_class);
      if (free_[index].empty()) continue;
      if (oldest < 0 || last_request_[index] < last_request_[static_cast<size_t>(oldest)]) oldest = size_class;
    }
    if (oldest < 0) return;
    std::vector<void*>& list = free_[static_cast<size_t>(oldest)];
    for (; !list.empty() && reserved_bytes_ > reserved_at_most; list.pop_back()) {
      std::free(list.back());
      reserved_bytes_ -= ClassBytes(oldest);
    }
  }
}

Allocator& CpuAllocator() {
  static HostAllocator& allocator = *new HostAllocator();
  return allocator;
}

Allocator& MetaAllocator() {
  static CountingAllocator& allocator = *new CountingAllocator();
  return allocator;
}

}  // namespace tessera
