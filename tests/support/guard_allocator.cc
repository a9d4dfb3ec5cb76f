// SPDX-License-Identifier: Apache-2.0
#include "tests/support/guard_allocator.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace tessera::testing {
namespace {

constexpr int64_t kZone = 256;
constexpr unsigned char kGuard = 0xA5;
constexpr unsigned char kFresh = 0xFF;  // NaN in every floating type

}  // namespace

void* GuardAllocator::Take(int64_t bytes) {
  const int64_t padded = (bytes + 2 * kZone + 63) / 64 * 64;
  auto* block = static_cast<unsigned char*>(std::aligned_alloc(64, static_cast<size_t>(padded)));
  if (block == nullptr) throw std::bad_alloc();
  std::memset(block, kGuard, static_cast<size_t>(padded));
  std::memset(block + kZone, kFresh, static_cast<size_t>(bytes));
  return block + kZone;
}

void GuardAllocator::Give(void* data, int64_t bytes) {
  unsigned char* block = static_cast<unsigned char*>(data) - kZone;
  bool damaged = false;
  for (int64_t i = 0; i < kZone; ++i) damaged |= block[i] != kGuard || block[kZone + bytes + i] != kGuard;
  if (damaged) ++damaged_;
  std::memset(block + kZone, kFresh, static_cast<size_t>(bytes));
  std::free(block);
}

}  // namespace tessera::testing
