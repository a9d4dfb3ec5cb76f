// SPDX-License-Identifier: Apache-2.0
#include "comm/self.h"

#include <cstring>

#include "comm/call.h"

namespace tessera::comm {

struct Self::Failure {
  std::mutex mutex;
  bool aborted = false;
  std::string reason;

  void ThrowIfAborted() {
    const std::lock_guard lock(mutex);
    if (aborted) throw AbortedError(reason);
  }
};

Self::Self() : failure_(std::make_shared<Failure>()) {}

// The first elements of `from`, as many as both have: with a pitch the buffer of pieces may be longer than its one piece.
void Self::Copy(const Tensor& from, const Tensor& to, Stream& stream) {
  failure_->ThrowIfAborted();
  const std::byte* source = ReadStart(from);
  std::byte* target = WriteStart(to);
  const size_t bytes = static_cast<size_t>(from.bytes() < to.bytes() ? from.bytes() : to.bytes());
  stream.Run([failure = failure_, from, to, source, target, bytes] {
    failure->ThrowIfAborted();
    if (bytes > 0 && source != target) std::memcpy(target, source, bytes);
  });
}

void Self::AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options) {
  CheckAllGather(0, 1, one, all, options);
  Copy(one, all, stream);
}
void Self::ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options) {
  CheckReduceScatter(0, 1, all, one, options);
  Copy(all, one, stream);
}
void Self::AllReduce(const Tensor& buffer, Stream& stream, const Options& options) {
  CheckAllReduce(buffer, options);
  Copy(buffer, buffer, stream);
}
void Self::Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options) {
  CheckBroadcast(1, buffer, root, options);
  Copy(buffer, buffer, stream);
}
void Self::AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options) {
  CheckAllToAll(1, send, receive, options);
  Copy(send, receive, stream);
}

std::vector<std::string> Self::AllGatherBytes(std::string_view mine) {
  failure_->ThrowIfAborted();
  return {std::string(mine)};
}
void Self::Barrier() { failure_->ThrowIfAborted(); }

std::unique_ptr<Communicator> Self::Split(int, int) {
  failure_->ThrowIfAborted();
  return std::unique_ptr<Communicator>(new Self(failure_));
}

void Self::Abort(std::string_view reason) noexcept {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->aborted) return;
  failure_->aborted = true;
  failure_->reason = reason;
}

}  // namespace tessera::comm
