// SPDX-License-Identifier: Apache-2.0
#include "tensor/progress.h"

namespace tessera {

Progress::Progress() = default;
Progress::~Progress() = default;

Progress::Step::Step(Progress* progress) : progress_(progress) {}
Progress::Step::~Step() { progress_->Advance(); }

void Progress::Advance() {
  done_.fetch_add(1);
  // Sequentially consistent on both sides: either this sees the sleeper, or the sleeper sees the step.
  if (sleepers_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  moved_.notify_all();
}

void Progress::WaitFor(int64_t steps) {
  for (int look = 0; look < 300; ++look) {
    if (done_.load(std::memory_order_acquire) >= steps) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  moved_.wait(lock, [&] { return done_.load() >= steps; });
  sleepers_.fetch_sub(1);
}

}  // namespace tessera
