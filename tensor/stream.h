// SPDX-License-Identifier: Apache-2.0
// Ordered queues of work, and marks in them.
//
// On the CPU a stream either runs its work at once on the caller (inline: where computing is done) or has a thread of its
// own (worker: communication, offload), so that a missing wait shows on a machine without a GPU. On a GPU it is a CUDA
// stream.
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

namespace tessera {

enum class StreamKind : uint8_t { kInline, kWorker };

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
  ~Stream();  // waits for the work that is queued; drops what an error left
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamKind kind() const { return kind_; }

  // Runs `function` after everything queued before. What it captures lives until it has run.
  template <class F>
  void Run(F function) {
    if (kind_ == StreamKind::kInline) {
      function();
    } else {
      Push(std::make_unique<internal::CallableTask<F>>(std::move(function)));
    }
  }
  // Work queued from now on starts after the event. An inline stream waits here.
  void Wait(const Event& event);
  // The host waits for all work; rethrows what the work threw.
  void Synchronize();

 private:
  friend class Event;
  void Push(std::unique_ptr<internal::StreamTask> task);

  StreamKind kind_;
  std::unique_ptr<internal::StreamQueue> queue_;
};

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
