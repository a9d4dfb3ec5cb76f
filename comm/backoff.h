// SPDX-License-Identifier: Apache-2.0
// How to wait for another process that can only be polled: a short spin, then giving the processor away, then short sleeps.
// Inside comm only.
//
//   for (Backoff backoff(spins); !done(); backoff.Pause()) { if (backoff.waited_s() > timeout_s) ... }
#pragma once

#include <chrono>
#include <thread>

namespace tessera::comm {

class Backoff {
 public:
  // `spins`: each waiter may have a processor.
  explicit Backoff(bool spins) : spins_(spins) {}
  void Pause() {
    if (turn_++ == 0) start_ = Clock::now();
    if (spins_ && turn_ < 200) return;
    const double waited = waited_s();
    if (waited < 1e-3) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(waited < 0.1 ? 20 : 500));
    }
  }
  double waited_s() const { return turn_ == 0 ? 0 : std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  bool spins_;
  int turn_ = 0;
  Clock::time_point start_;
};

}  // namespace tessera::comm
