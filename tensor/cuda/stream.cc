// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/stream.h"

#include <array>
#include <utility>
#include <vector>

#include "tensor/cuda/allocator.h"
#include "tensor/cuda/runtime.cuh"

namespace tessera::internal {
namespace {

// Events are used again, so that a steady step makes none.
class EventPool {
 public:
  static EventPool& Of(Device device) {
    static std::array<EventPool, 128>& pools = *new std::array<EventPool, 128>();
    return pools.at(static_cast<size_t>(device.index));
  }
  cudaEvent_t Take() {  // the device is current
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event;
    TESSERA_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void Give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaEvent final : public EventState {
 public:
  CudaEvent(Device device, cudaStream_t stream) : device_(device) {
    const DeviceScope scope(device);
    event_ = EventPool::Of(device).Take();
    TESSERA_CUDA_CALL(cudaEventRecord(event_, stream));
  }
  ~CudaEvent() override { EventPool::Of(device_).Give(event_); }
  bool done() override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaSuccess) cudaGetLastError();  // "not ready" is no error of the next call
    return status == cudaSuccess;
  }
  void Wait() override { TESSERA_CUDA_CALL(cudaEventSynchronize(event_)); }
  void* native() const override { return event_; }

 private:
  const Device device_;
  cudaEvent_t event_;
};

}  // namespace

CudaQueue::CudaQueue(Device device, bool own) : device_(device), own_(own) {
  const DeviceScope scope(device);
  // Without the default stream's implicit waits: what waits for what is said by events.
  if (own) TESSERA_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaQueue::~CudaQueue() {
  const DeviceScope scope(device_);
  cudaStreamSynchronize(stream_);
  kept_.clear();
  DeviceAllocator& allocator = CudaAllocator(device_.index);
  if (workspace_ != nullptr) allocator.Free(workspace_, kWorkspaceBytes, MemoryTag::kWorkspace);
  allocator.ForgetStream(stream_);
  if (own_) cudaStreamDestroy(stream_);
}

void CudaQueue::Push(std::unique_ptr<StreamTask> task) {
  DropFinished();
  StreamTask& running = *task;
  const auto keep = [&] {
    std::shared_ptr<EventState> after = Record();
    const std::lock_guard lock(mutex_);
    kept_.push_back({std::move(task), std::move(after)});
  };
  try {
    running.Run();
  } catch (...) {
    keep();  // some of its work may be queued
    throw;
  }
  keep();
}

void CudaQueue::DropFinished() {
  std::vector<Kept> finished;  // goes outside the lock: what it owns may have anything in its destructor
  const std::lock_guard lock(mutex_);
  while (!kept_.empty() && kept_.front().after->done()) {
    finished.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

std::shared_ptr<EventState> CudaQueue::Record() { return std::make_shared<CudaEvent>(device_, stream_); }

void CudaQueue::Wait(const std::shared_ptr<EventState>& event) {
  if (event->native() == nullptr) return event->Wait();
  const DeviceScope scope(device_);
  TESSERA_CUDA_CALL(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event->native()), 0));
}

void CudaQueue::Synchronize() {
  const DeviceScope scope(device_);
  TESSERA_CUDA_CALL(cudaStreamSynchronize(stream_));
  DropFinished();
}

void* CudaQueue::Workspace() {
  const std::lock_guard lock(mutex_);
  if (workspace_ == nullptr) {
    workspace_ = CudaAllocator(device_.index).Allocate(kWorkspaceBytes, MemoryTag::kWorkspace);
  }
  return workspace_;
}

std::unique_ptr<StreamQueue> NewCudaQueue(Device device) { return std::make_unique<CudaQueue>(device, true); }
std::unique_ptr<StreamQueue> DefaultCudaQueue(Device device) { return std::make_unique<CudaQueue>(device, false); }

LaunchScope::LaunchScope(Device device)
    : device_scope_(device), queue_(static_cast<CudaQueue&>(*StreamQueue::Of(CurrentStream(device)))) {}

void LaunchScope::CheckLaunch(const char* op) const {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) ThrowCudaError(status, Str("the launch of ", op).c_str());
}

}  // namespace tessera::internal
