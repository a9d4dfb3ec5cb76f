// SPDX-License-Identifier: Apache-2.0
#include "zero/slot_pool.h"

#include <cmath>

#include "tensor/ops/fill.h"

namespace tessera::zero {

SlotPool::Class& SlotPool::FindClass(int64_t numel, DType dtype) {
  for (Class& entry : classes_) {
    if (entry.numel == numel && entry.dtype == dtype) return entry;
  }
  classes_.push_back({.numel = numel, .dtype = dtype, .free = {}});
  return classes_.back();
}

Tensor SlotPool::Acquire(int64_t numel, DType dtype) {
  Class& entry = FindClass(numel, dtype);
  size_t chosen = entry.free.size();
  for (size_t i = 0; i < entry.free.size() && chosen == entry.free.size(); ++i) {
    if (entry.free[i].after.done()) chosen = i;
  }
  // Rather wait for a slot that is about to come back than hold one more.
  if (chosen == entry.free.size() && !entry.free.empty() && entry.count >= options_.keep_per_class) chosen = 0;
  if (chosen == entry.free.size()) {
    ++entry.count;
    held_numel_ += numel;
    return Empty({numel}, dtype, options_.tag);
  }
  const Free taken = std::move(entry.free[chosen]);
  entry.free.erase(entry.free.begin() + static_cast<std::ptrdiff_t>(chosen));
  taken.after.Synchronize();
  return taken.slot;
}

void SlotPool::Release(Tensor slot, const Event& after) {
  Class& entry = FindClass(slot.numel(), slot.dtype());
  if (options_.poison) {
    after.Synchronize();
    ops::Fill({.out = slot.Write(), .value = std::nan("")});
  }
  slot.storage()->SetLabel(nullptr);
  if (entry.count > options_.keep_per_class) {
    Drop(entry, std::move(slot), after);
  } else {
    entry.free.push_back({std::move(slot), after});
  }
}

void SlotPool::Drop(Class& from, Tensor slot, const Event& after) {
  after.Synchronize();
  --from.count;
  held_numel_ -= slot.numel();
}

bool SlotPool::HasRoom(int64_t numel, DType dtype) const {
  if (numel == 0) return true;  // units without frozen parameters share this class, and must not wait for each other
  for (const Class& entry : classes_) {
    if (entry.numel == numel && entry.dtype == dtype) {
      return !entry.free.empty() || entry.count < options_.keep_per_class;
    }
  }
  return true;
}

void SlotPool::Shrink(int64_t max_numel) {
  for (Class& entry : classes_) {
    while (held_numel_ > max_numel && !entry.free.empty()) {
      Free last = std::move(entry.free.back());
      entry.free.pop_back();
      Drop(entry, std::move(last.slot), last.after);
    }
  }
}

}  // namespace tessera::zero
