// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tensor/cuda/device.h"
#include "tensor/cuda/runtime.cuh"

namespace tessera {
namespace {

bool CheckMode() {
  const char* value = std::getenv("TESSERA_CUDA_CHECK");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace

DeviceAllocator::DeviceAllocator(int index) : index_(index), keeps_blocks_(!CheckMode()), poison_(CheckMode()) {
  const internal::DeviceScope scope(Cuda(index));
  cudaEvent_t event;
  TESSERA_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  order_event_ = event;
}

int64_t DeviceAllocator::RoundedBytes(int64_t bytes) const {
  constexpr int64_t kSmallest = 512, kLarge = 16 << 20, kPage = 2 << 20;
  if (!keeps_blocks_) return bytes;
  if (bytes <= kSmallest) return kSmallest;
  const int64_t step =
      bytes > kLarge ? kPage : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1)) / 8);
  return (bytes + step - 1) / step * step;
}

void* DeviceAllocator::Take(int64_t bytes) {
  const int64_t rounded = RoundedBytes(bytes);
  const internal::DeviceScope scope(Cuda(index_));
  void* stream = CurrentStream(Cuda(index_)).native();
  void* data;
  {
    const std::lock_guard lock(mutex_);
    data = TakeFreeLocked(free_[rounded], stream);
    if (data == nullptr) data = TakeFromDriverLocked(rounded);
  }
  if (poison_) {  // 0xFF is NaN in every floating type
    TESSERA_CUDA_CALL(cudaMemsetAsync(data, 0xFF, static_cast<size_t>(rounded), static_cast<cudaStream_t>(stream)));
  }
  return data;
}

void* DeviceAllocator::TakeFreeLocked(std::vector<FreeBlock>& blocks, void* stream) {
  if (blocks.empty()) return nullptr;
  auto found = std::find_if(blocks.rbegin(), blocks.rend(),
                            [&](const FreeBlock& block) { return block.idle || block.stream == stream; });
  if (found == blocks.rend()) {
    // The one that was freed first: its stream is most likely past it.
    const cudaEvent_t event = static_cast<cudaEvent_t>(order_event_);
    TESSERA_CUDA_CALL(cudaEventRecord(event, static_cast<cudaStream_t>(blocks.front().stream)));
    TESSERA_CUDA_CALL(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0));
    found = std::prev(blocks.rend());
  }
  void* data = found->data;
  blocks.erase(std::next(found).base());
  return data;
}

void* DeviceAllocator::TakeFromDriverLocked(int64_t rounded_bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (limit_bytes_ == 0 || reserved_bytes_ + rounded_bytes <= limit_bytes_) {
      void* data = nullptr;
      const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(rounded_bytes));
      if (status == cudaSuccess) {
        reserved_bytes_ += rounded_bytes;
        ++system_allocation_count_;
        return data;
      }
      if (status != cudaErrorMemoryAllocation) internal::ThrowCudaError(status, "cudaMalloc");
      cudaGetLastError();
    }
    ReleaseLocked();
  }
  throw std::bad_alloc();
}

void DeviceAllocator::Give(void* data, int64_t bytes) {
  const int64_t rounded = RoundedBytes(bytes);
  // From destructors: after an error of the device nothing here may throw.
  if (!keeps_blocks_) {
    const internal::DeviceScope scope(Cuda(index_));
    cudaFree(data);  // waits for the device
    reserved_bytes_ -= rounded;
    return;
  }
  void* stream = CurrentStream(Cuda(index_)).native();
  const std::lock_guard lock(mutex_);
  free_[rounded].push_back({data, stream, false});
}

void DeviceAllocator::ForgetStream(void* stream) {
  const std::lock_guard lock(mutex_);
  for (auto& [bytes, blocks] : free_) {
    for (FreeBlock& block : blocks) {
      if (block.stream == stream) block.idle = true;
    }
  }
}

void DeviceAllocator::ReleaseCached() {
  const internal::DeviceScope scope(Cuda(index_));
  const std::lock_guard lock(mutex_);
  ReleaseLocked();
}

void DeviceAllocator::ReleaseLocked() {
  cudaDeviceSynchronize();
  for (auto& [bytes, blocks] : free_) {
    for (const FreeBlock& block : blocks) {
      cudaFree(block.data);
      reserved_bytes_ -= bytes;
    }
    blocks.clear();
  }
}

DeviceAllocator& CudaAllocator(int index) {
  static std::mutex mutex;
  static std::array<DeviceAllocator*, 128> allocators{};
  const std::lock_guard lock(mutex);
  DeviceAllocator*& allocator = allocators.at(static_cast<size_t>(std::max(index, 0)));
  if (allocator == nullptr) allocator = new DeviceAllocator(index);
  return *allocator;
}

}  // namespace tessera
