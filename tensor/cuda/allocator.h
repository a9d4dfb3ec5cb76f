// SPDX-License-Identifier: Apache-2.0
// GPU memory by tag, kept for reuse in the order of streams.
//
// A freed block may be taken again at once by work of the stream that was current when it was freed: there it comes after
// all that used the block. So let go of a tensor where it was used last, or after an event. If only another stream's free
// block fits, the taker first waits, on the GPU, for what that stream holds by then.
//
// Blocks are an eighth of a power of two apart, from 16 MiB on 2 MiB apart, and are taken again for their own size alone:
// a step that asks for the same sizes asks the driver for nothing. When memory runs out, free blocks go back to the driver.
//
// With TESSERA_CUDA_CHECK=1 in the environment, for compute-sanitizer: blocks of exactly the size asked for, filled with
// NaN, and none kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tensor/allocator.h"

namespace tessera {

class DeviceAllocator final : public Allocator {
 public:
  explicit DeviceAllocator(int index);
  void ReleaseCached() override;
  // Fills what is handed out with NaN, for tests.
  void SetPoison(bool poison) { poison_ = poison; }
  // A limit on reserved bytes, for tests of the out-of-memory report; 0 = none.
  void SetLimit(int64_t bytes) { limit_bytes_ = bytes; }
  // The stream is about to be destroyed, and its work is done.
  void ForgetStream(void* stream);

 protected:
  void* Take(int64_t bytes) override;
  void Give(void* data, int64_t bytes) override;
  int64_t reserved_bytes(int64_t) const override { return reserved_bytes_; }
  int64_t system_allocation_count() const override { return system_allocation_count_; }

 private:
  struct FreeBlock {
    void* data;
    void* stream;
    bool idle;  // no work is left that could use it
  };
  int64_t RoundedBytes(int64_t bytes) const;
  void* TakeFreeLocked(std::vector<FreeBlock>& blocks, void* stream);
  void* TakeFromDriverLocked(int64_t rounded_bytes);
  void ReleaseLocked();

  const int index_;
  const bool keeps_blocks_;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::vector<FreeBlock>> free_;  // by rounded size
  void* order_event_ = nullptr;                               // a cudaEvent_t, for waits between streams
  std::atomic<int64_t> reserved_bytes_{0};
  std::atomic<int64_t> system_allocation_count_{0};
  int64_t limit_bytes_ = 0;
  bool poison_;
};

// The shared allocator of a GPU, never destroyed. Throws where there is no such GPU.
DeviceAllocator& CudaAllocator(int index);

}  // namespace tessera
