// SPDX-License-Identifier: Apache-2.0
#include "tensor/stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "tensor/context.h"
#include "tensor/thread_pool.h"

namespace tessera {
namespace internal {

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::exception_ptr error;

  void Reach(std::exception_ptr with) {
    {
      const std::lock_guard lock(mutex);
      reached = true;
      error = std::move(with);
    }
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
    if (error) std::rethrow_exception(error);
  }
};

class StreamQueue {
 public:
  StreamQueue() : context_(CurrentContext()), worker_([this] { Work(); }) {}
  ~StreamQueue() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    worker_.join();
  }

  void Push(std::unique_ptr<StreamTask> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({std::move(task), nullptr});
    }
    changed_.notify_one();
  }
  void PushEvent(std::shared_ptr<EventState> event) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({nullptr, std::move(event)});
    }
    changed_.notify_one();
  }

 private:
  struct Item {
    std::unique_ptr<StreamTask> task;  // or
    std::shared_ptr<EventState> event;
  };

  void Work() {
    ThreadPool alone(1);
    Context context = context_;
    context.thread_pool = &alone;
    const ContextGuard guard(context);
    std::exception_ptr error;
    while (true) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        item = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (item.event) {
        item.event->Reach(error);
      } else if (!error) {
        try {
          item.task->Run();
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
  }

  Context context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> tasks_;
  bool stopping_ = false;
  std::thread worker_;  // last: it uses the members above
};

}  // namespace internal

Stream::Stream(StreamKind kind) : kind_(kind) {
  if (kind == StreamKind::kWorker) queue_ = std::make_unique<internal::StreamQueue>();
}
Stream::~Stream() = default;

void Stream::Push(std::unique_ptr<internal::StreamTask> task) { queue_->Push(std::move(task)); }

void Stream::Wait(const Event& event) {
  if (event.done()) return;
  if (kind_ == StreamKind::kInline) {
    event.Synchronize();
  } else {
    Run([event] { event.Synchronize(); });
  }
}

void Stream::Synchronize() {
  Event event;
  event.Record(*this);
  event.Synchronize();
}

void Event::Record(Stream& stream) {
  state_ = nullptr;
  if (stream.kind_ == StreamKind::kInline) return;
  state_ = std::make_shared<internal::EventState>();
  stream.queue_->PushEvent(state_);
}

bool Event::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->reached && !state_->error;
}

void Event::Synchronize() const {
  if (state_) state_->Wait();
}

}  // namespace tessera
