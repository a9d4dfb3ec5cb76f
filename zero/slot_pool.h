// SPDX-License-Identifier: Apache-2.0
// Buffers that units come into for a while: gathered parameters, gradients on their way to being reduced. Slots are of
// fixed sizes, one class for each, so that blocks share theirs and an embedding has its own; they are kept for reuse, so
// a steady step allocates nothing. A slot handed back by work of another stream is not handed out before its event.
//
//   SlotPool pool({.tag = MemoryTag::kGatherSlots, .keep_per_class = 2});
//   Tensor slot = pool.Acquire(numel, DType::kBF16);
//   pool.Release(std::move(slot), after);
#pragma once

#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace tessera::zero {

struct SlotPoolOptions {
  MemoryTag tag = MemoryTag::kGatherSlots;
  int keep_per_class = 1;  // more are made when they are needed at once, and dropped afterwards
  bool poison = false;     // tests: what is handed back is filled with NaN, so that a stale view shows
};

class SlotPool {
 public:
  explicit SlotPool(const SlotPoolOptions& options) : options_(options) {}

  // (numel), values undefined.
  Tensor Acquire(int64_t numel, DType dtype);
  void Release(Tensor slot, const Event& after = Event());
  // Whether Acquire would need no more than keep_per_class slots of this class.
  bool HasRoom(int64_t numel, DType dtype) const;
  // Drops free slots until at most this many elements are held, or none is free.
  void Shrink(int64_t max_numel);
  int64_t held_numel() const { return held_numel_; }  // in use and free

 private:
  struct Free {
    Tensor slot;
    Event after;
  };
  struct Class {
    int64_t numel = 0;
    DType dtype = DType::kF32;
    int count = 0;  // in use and free
    std::vector<Free> free;
  };
  Class& FindClass(int64_t numel, DType dtype);
  void Drop(Class& from, Tensor slot, const Event& after);

  SlotPoolOptions options_;
  std::vector<Class> classes_;
  int64_t held_numel_ = 0;
};

}  // namespace tessera::zero
