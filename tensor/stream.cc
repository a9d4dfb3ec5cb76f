// SPDX-License-Identifier: Apache-2.0
#include "tensor/stream.h"

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "tensor/context.h"
#include "tensor/cuda/stream.h"
#include "tensor/error.h"
#include "tensor/stream_queue.h"
#include "tensor/thread_pool.h"

namespace tessera {
namespace internal {

namespace {

class WorkerEvent final : public EventState {
 public:
  void Reach(std::exception_ptr with) {
    {
      const std::lock_guard lock(mutex_);
      reached_ = true;
      error_ = std::move(with);
    }
    changed_.notify_all();
  }
  bool done() override {
    const std::lock_guard lock(mutex_);
    return reached_ && !error_;
  }
  void Wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::exception_ptr error_;
};

class WorkerQueue final : public StreamQueue {
 public:
  WorkerQueue() : context_(CurrentContext()), worker_([this] { Work(); }) {}
  ~WorkerQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    worker_.join();
  }

  void Push(std::unique_ptr<StreamTask> task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({std::move(task), nullptr});
    }
    changed_.notify_one();
  }
  std::shared_ptr<EventState> Record() override {
    auto event = std::make_shared<WorkerEvent>();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({nullptr, event});
    }
    changed_.notify_one();
    return event;
  }
  void Wait(const std::shared_ptr<EventState>& event) override {
    const auto wait = [event] { event->Wait(); };
    Push(std::make_unique<CallableTask<decltype(wait)>>(wait));
  }

 private:
  struct Item {
    std::unique_ptr<StreamTask> task;  // or
    std::shared_ptr<WorkerEvent> event;
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

}  // namespace
}  // namespace internal

Stream::Stream(StreamKind kind) : kind_(kind) {
  if (kind == StreamKind::kWorker) queue_ = std::make_unique<internal::WorkerQueue>();
  if (kind == StreamKind::kCuda) throw Error("stream: a CUDA stream needs a device: Stream(Cuda(0))");
}

Stream::Stream(Device device) : kind_(device.is_cuda() ? StreamKind::kCuda : StreamKind::kInline), device_(device) {
  if (!device.is_cuda()) return;
  if constexpr (kBuiltWithCuda) {
    queue_ = internal::NewCudaQueue(device);
  } else {
    throw Error(Str("stream: device ", device, " is not part of this build (configure with -Dcuda=enabled)"));
  }
}

Stream::Stream(Device device, std::unique_ptr<internal::StreamQueue> queue)
    : kind_(queue ? StreamKind::kCuda : StreamKind::kInline), device_(device), queue_(std::move(queue)) {}

Stream::~Stream() = default;

void* Stream::native() const { return queue_ ? queue_->native() : nullptr; }

void Stream::Push(std::unique_ptr<internal::StreamTask> task) {
  if (kind_ != StreamKind::kCuda) return queue_->Push(std::move(task));
  Context context = CurrentContext();
  context.stream = this;
  const ContextGuard guard(context);
  queue_->Push(std::move(task));
}

void Stream::Wait(const Event& event) {
  if (event.done()) return;
  if (queue_) {
    queue_->Wait(event.state_);
  } else {
    event.Synchronize();
  }
}

void Stream::Synchronize() {
  if (queue_) queue_->Synchronize();
}

Stream& DefaultStream(Device device) {
  static Stream& inline_stream = *new Stream(StreamKind::kInline);
  if (!device.is_cuda()) return inline_stream;
  static std::mutex mutex;
  static std::array<Stream*, 128> of_device{};
  const std::lock_guard lock(mutex);
  Stream*& stream = of_device.at(static_cast<size_t>(device.index));
  if (stream == nullptr) {
    if constexpr (kBuiltWithCuda) {
      stream = new Stream(device, internal::DefaultCudaQueue(device));
    } else {
      throw Error(Str("stream: device ", device, " is not part of this build (configure with -Dcuda=enabled)"));
    }
  }
  return *stream;
}

Stream& CurrentStream(Device device) {
  Stream* stream = CurrentContext().stream;
  return stream != nullptr && stream->device() == device ? *stream : DefaultStream(device);
}

void Event::Record(Stream& stream) { state_ = stream.queue_ ? stream.queue_->Record() : nullptr; }

bool Event::done() const { return !state_ || state_->done(); }

void Event::Synchronize() const {
  if (state_) state_->Wait();
}

}  // namespace tessera
