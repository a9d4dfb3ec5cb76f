// SPDX-License-Identifier: Apache-2.0
#include "io/batch_loader.h"

#include <algorithm>
#include <utility>

#include "tensor/error.h"

namespace tessera::io {
namespace {

absl::Status CheckOptions(const BatchLoaderOptions& options, int64_t samples) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(Str("batch loader: ", name, " is ", value, ", expected at least ", least));
  };
  for (const absl::Status& status : {at_least("batch_size", options.batch_size, 1), at_least("ranks", options.ranks, 1),
                                     at_least("rank", options.rank, 0), at_least("cursor", options.cursor, 0),
                                     at_least("queue_batches", options.queue_batches, 1)}) {
    if (!status.ok()) return status;
  }
  if (options.rank >= options.ranks) {
    return absl::InvalidArgumentError(Str("batch loader: rank ", options.rank, " is outside 0..", options.ranks - 1));
  }
  if (samples < options.batch_size * options.ranks) {
    return absl::InvalidArgumentError(Str("the data has ", samples, " samples; one batch needs ",
                                          options.batch_size * options.ranks, " (", options.batch_size, " on each of ",
                                          options.ranks, options.ranks == 1 ? " rank)" : " ranks)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Create(const TokenDataset& dataset,
                                                                 const BatchLoaderOptions& options) {
  if (absl::Status status = CheckOptions(options, dataset.size()); !status.ok()) return status;
  return std::unique_ptr<BatchLoader>(new BatchLoader(dataset, options));
}

BatchLoader::BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      order_(dataset.size(), options.order),
      context_(CurrentContext()),
      next_cursor_(options.cursor),
      thread_([this] { Run(); }) {}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<Batch> BatchLoader::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !queue_.empty() || ended_; });
  if (queue_.empty()) {
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
  }
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  changed_.notify_all();
  next_cursor_ += options_.batch_size * options_.ranks;
  if (options_.end_cursor) next_cursor_ = std::min(next_cursor_, *options_.end_cursor);
  return batch;
}

void BatchLoader::Run() {
  std::exception_ptr failure;
  try {
    const ContextGuard guard(context_);
    Produce();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  ended_ = true;
  changed_.notify_all();
}

void BatchLoader::Produce() {
  const int64_t global_batch = options_.batch_size * options_.ranks;
  for (int64_t cursor = options_.cursor;; cursor += global_batch) {
    const int64_t first = cursor + options_.rank * options_.batch_size;
    int64_t count = options_.batch_size;
    if (options_.end_cursor) count = std::min(count, *options_.end_cursor - first);
    if (count <= 0) return;
    Batch batch = dataset_.MakeBatch(order_, first, count);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || static_cast<int64_t>(queue_.size()) < options_.queue_batches; });
    if (stopping_) return;
    queue_.push_back(std::move(batch));
    lock.unlock();
    changed_.notify_all();
  }
}

}  // namespace tessera::io
