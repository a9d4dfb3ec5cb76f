// SPDX-License-Identifier: Apache-2.0
#include "tensor/scratch.h"

#include <array>
#include <cstdlib>

#include "tensor/error.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;

struct Slots {
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  std::array<Block, kScratchSlotCount> blocks;
  ~Slots() {
    for (Block& block : blocks) std::free(block.data);
  }
};

}  // namespace

void* ThreadScratch(ScratchSlot slot, int64_t bytes) {
  thread_local Slots slots;
  Slots::Block& block = slots.blocks[static_cast<size_t>(slot)];
  if (block.bytes < bytes) {
    std::free(block.data);
    block = {};
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    block.data = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
    if (block.data == nullptr) throw Error(Str("scratch: the system has no ", rounded, " bytes left"));
    block.bytes = rounded;
  }
  return block.data;
}

}  // namespace tessera
