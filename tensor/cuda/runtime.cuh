// SPDX-License-Identifier: Apache-2.0
// CUDA's run time as tensor/ uses it: errors that name the call, the current device, the current stream.
//
//   const LaunchScope scope(args.x.device);
//   Kernel<<<blocks, threads, 0, scope.stream()>>>(...);
//   scope.CheckLaunch("rms_norm");
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "tensor/device.h"
#include "tensor/error.h"
#include "tensor/stream_queue.h"

namespace tessera::internal {

[[noreturn]] void ThrowCudaError(cudaError_t status, const char* call);
inline void CheckCuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) ThrowCudaError(status, call);
}
#define TESSERA_CUDA_CALL(call) ::tessera::internal::CheckCuda((call), #call)

// Makes a GPU the thread's current one for a time.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// A CUDA stream, and what is alive because work in it may still use it.
class CudaQueue final : public StreamQueue {
 public:
  // For matrix products, of a fixed size, made at first use; one per stream, so that products in two streams never share.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  CudaQueue(Device device, bool own);
  ~CudaQueue() override;
  void Push(std::unique_ptr<StreamTask> task) override;
  std::shared_ptr<EventState> Record() override;
  void Wait(const std::shared_ptr<EventState>& event) override;
  void Synchronize() override;
  void* native() const override { return stream_; }
  void* Workspace();

 private:
  struct Kept {
    std::unique_ptr<StreamTask> task;
    std::shared_ptr<EventState> after;
  };
  void DropFinished();

  const Device device_;
  const bool own_;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;
  std::deque<Kept> kept_;
  void* workspace_ = nullptr;
};

// For the time of an op's launches: its device is current, and stream() is where they go.
class LaunchScope {
 public:
  explicit LaunchScope(Device device);
  cudaStream_t stream() const { return static_cast<cudaStream_t>(queue_.native()); }
  void* Workspace() const { return queue_.Workspace(); }
  void CheckLaunch(const char* op) const;

 private:
  DeviceScope device_scope_;
  CudaQueue& queue_;
};

}  // namespace tessera::internal
