// SPDX-License-Identifier: Apache-2.0
// The only ambient state: where this thread makes new tensors, which pool its loops run on, and the random streams.
//
//   ContextGuard guard(Context{.device = kMeta});   // everything below allocates nothing
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/rng.h"

namespace tessera {

class Allocator;
class Stream;
class ThreadPool;

struct Context {
  Device device = kCpu;
  Allocator* cpu_allocator = nullptr;  // null: the process's shared one
  ThreadPool* thread_pool = nullptr;   // null: the process's shared one
  Stream* stream = nullptr;            // where ops on its GPU are queued; null: DefaultStream(device)
  uint64_t seed = 0;

  // What makes one random mask differ from the next: the key is (seed, step, micro_step, rank, path, call). Whoever
  // drives the loop sets the first ones; `random_calls` counts by itself and `Checkpoint` rewinds it for the recompute.
  int64_t step = 0;
  int64_t micro_step = 0;
  int64_t rank = 0;
  uint64_t random_calls = 0;

  Allocator& allocator_for(Device where) const;
  ThreadPool& pool() const;
  void BeginMicroStep(int64_t new_step, int64_t new_micro_step) {
    step = new_step;
    micro_step = new_micro_step;
    random_calls = 0;
  }
  // The key for the next random draw of the module at `path`.
  RngKey NextRandomKey(std::string_view path);
};

Context& CurrentContext();

class ContextGuard {
 public:
  explicit ContextGuard(const Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context previous_;
};

}  // namespace tessera
