// SPDX-License-Identifier: Apache-2.0
// Ordered queues of work, and marks in them.
//
// On the CPU a stream either runs its work at once on the caller (inline: where computing is done) or has a thread of its
// own (worker: communication, offload), so that a missing wait shows on a machine without a GPU. On a GPU it is a CUDA
// stream: work is queued there by the caller, and ops go to the stream that the Context names.
//
//   Stream side(StreamKind::kWorker);
//   side.Run([=] { comm->AllGather(...); });
//   Event done;
//   done.Record(side);
//   compute.Wait(done);      // or done.Synchronize() on the host
//
// Work that throws ends its stream: what was queued behind is dropped, and every wait for it rethrows the error.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "tensor/device.h"

namespace tessera {

enum class StreamKind : uint8_t { kInline, kWorker, kCuda };

namespace internal {
class StreamTask {
 public:
  virtual ~StreamTask() = default;
  virtual void Run() = 0;
};
template <class F>
class CallableTask final : public StreamTask {
 public:
  explicit CallableTask(F function) : function_(std::move(function)) {}
  void Run() override { function_(); }

 private:
  F function_;
};
class StreamQueue;
struct EventState;
}  // namespace internal

class Event;

class Stream {
 public:
  // A worker starts with this thread's Context, but for the pool: its loops run on its own thread alone.
  explicit Stream(StreamKind kind);
  // A new stream of a GPU; for another device, an inline one.
  explicit Stream(Device device);
  ~Stream();  // waits for the work that is queued; drops what an error left
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamKind kind() const { return kind_; }
  Device device() const { return device_; }
  void* native() const;  // the cudaStream_t; null on the CPU, and of the default stream of a GPU

  // Runs `function` after everything queued before. What it captures lives until it has run; on a GPU: until the work has
  // run that it queued there, as the Context's stream.
  template <class F>
  void Run(F function) {
    if (kind_ == StreamKind::kInline) {
      function();
    } else {
      Push(std::make_unique<internal::CallableTask<F>>(std::move(function)));
    }
  }
  // Work queued from now on starts after the event. An inline stream waits here, and so does a GPU's for an event of a
  // worker, which no GPU can see.
  void Wait(const Event& event);
  // The host waits for all work; rethrows what the work threw.
  void Synchronize();

 private:
  friend class Event;
  friend class internal::StreamQueue;
  friend Stream& DefaultStream(Device device);
  Stream(Device device, std::unique_ptr<internal::StreamQueue> queue);
  void Push(std::unique_ptr<internal::StreamTask> task);

  StreamKind kind_;
  Device device_;
  std::unique_ptr<internal::StreamQueue> queue_;
};

// Where a device's work goes when nobody says otherwise; never destroyed.
Stream& DefaultStream(Device device);
// Where ops on `device` go: the Context's stream if it is that device's, else the default one.
Stream& CurrentStream(Device device);

// A point in a stream's work. A new one counts as reached. Copies share the point.
class Event {
 public:
  void Record(Stream& stream);
  bool done() const;
  void Synchronize() const;  // the host waits; rethrows what the stream's work threw before this point

 private:
  friend class Stream;
  std::shared_ptr<internal::EventState> state_;  // null: reached
};

}  // namespace tessera
