// SPDX-License-Identifier: Apache-2.0
// Lets the later chunks of one parallel loop wait for earlier ones. A pool hands chunks out in ascending order, so whoever
// waits for earlier chunks waits for threads that are at work on them, and somebody always gets on.
//
//   Progress packed;
//   ParallelFor(4 + blocks, 1, [&](int64_t i, int64_t) {
//     if (i < 4) { Progress::Step step(&packed); Pack(i); } else { packed.WaitFor(4); Multiply(i - 4); }
//   });
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tessera {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Counts one step at its end, also when it ends by an exception: nobody may wait for ever.
  class Step {
   public:
    explicit Step(Progress* progress);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Progress* progress_;
  };

  // Returns once `steps` are done; what they wrote is visible then. What is waited for takes microseconds, less than
  // falling asleep and waking up, so this looks a few hundred times before it sleeps.
  void WaitFor(int64_t steps);

 private:
  void Advance();

  std::atomic<int64_t> done_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable moved_;
};

}  // namespace tessera
