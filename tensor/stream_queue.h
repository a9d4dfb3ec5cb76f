// SPDX-License-Identifier: Apache-2.0
// What stands behind a Stream and an Event: one implementation per kind of stream. Only files of tensor/ include this.
#pragma once

#include <memory>

#include "tensor/stream.h"

namespace tessera::internal {

struct EventState {
  virtual ~EventState() = default;
  virtual bool done() = 0;
  virtual void Wait() = 0;                          // the host waits; rethrows
  virtual void* native() const { return nullptr; }  // the cudaEvent_t
};

class StreamQueue {
 public:
  virtual ~StreamQueue() = default;
  virtual void Push(std::unique_ptr<StreamTask> task) = 0;
  virtual std::shared_ptr<EventState> Record() = 0;
  virtual void Wait(const std::shared_ptr<EventState>& event) = 0;
  virtual void Synchronize() { Record()->Wait(); }
  virtual void* native() const { return nullptr; }

  static StreamQueue* Of(const Stream& stream) { return stream.queue_.get(); }
};

}  // namespace tessera::internal
