// SPDX-License-Identifier: Apache-2.0
// Batches made ahead of their use by a thread of its own, through a bounded queue.
//
//   auto loader = BatchLoader::Create(data, {.batch_size = 32, .order = {.seed = 1}}).value();
//   while (std::optional<Batch> batch = loader->Next()) ...   // epoch after epoch, without a seam
//
// A global batch is batch_size * ranks samples that follow each other; this rank gets its own batch_size of them.
// Samples that an epoch has left over begin the next global batch, so none is dropped and none is read twice.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "io/token_dataset.h"
#include "tensor/context.h"

namespace tessera::io {

struct BatchLoaderOptions {
  int64_t batch_size = 1;  // of this rank
  int64_t rank = 0, ranks = 1;
  int64_t cursor = 0;                      // the global sample to begin with; next_cursor() of an earlier run
  std::optional<int64_t> end_cursor = {};  // where to end; the last batches may then be smaller, or missing
  int64_t queue_batches = 2;               // how far to work ahead
  SampleOrderOptions order = {};
};

class BatchLoader {
 public:
  // An error when the dataset has fewer samples than one global batch. The tensors come from the calling thread's
  // Context.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(const TokenDataset& dataset,
                                                             const BatchLoaderOptions& options);
  ~BatchLoader();  // ends the thread, whatever is still queued
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Waits for the next batch; nothing once `end_cursor` is reached. Rethrows what stopped the thread.
  std::optional<Batch> Next();
  // Where a later run has to begin so that it goes on after the batches that Next() has given out.
  int64_t next_cursor() const { return next_cursor_; }

 private:
  BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options);
  void Run();
  void Produce();

  const TokenDataset dataset_;
  const BatchLoaderOptions options_;
  const SampleOrder order_;
  const Context context_;
  int64_t next_cursor_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;
  std::exception_ptr failure_;
  bool ended_ = false;     // the thread will add nothing more
  bool stopping_ = false;  // the loader is being destroyed
  std::thread thread_;     // last: it uses everything above
};

}  // namespace tessera::io
