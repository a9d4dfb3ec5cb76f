// SPDX-License-Identifier: Apache-2.0
// An allocator that fills fresh memory with NaN and finds writes outside a block.
#pragma once

#include <atomic>

#include "tensor/allocator.h"

namespace tessera::testing {

class GuardAllocator final : public Allocator {
 public:
  int64_t damaged_blocks() const { return damaged_; }

 protected:
  void* Take(int64_t bytes) override;
  void Give(void* data, int64_t bytes) override;
  int64_t reserved_bytes(int64_t alive_bytes) const override { return alive_bytes; }
  int64_t system_allocation_count() const override { return 0; }

 private:
  std::atomic<int64_t> damaged_{0};
};

}  // namespace tessera::testing
