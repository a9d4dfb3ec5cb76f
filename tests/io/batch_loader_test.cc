// SPDX-License-Identifier: Apache-2.0
#include "io/batch_loader.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/allocator.h"
#include "tensor/error.h"

namespace tessera::io {
namespace {

// Sample i begins with token i, so the first column of ids says which samples a batch holds.
class BatchLoaderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSamples = 23, kLength = 2;

  BatchLoaderTest() {
    for (int32_t i = 0; i <= kSamples * kLength; ++i) tokens_.push_back(i / kLength);
  }
  TokenDataset Data() { return TokenDataset::Create(tokens_, nullptr, {.sequence_tokens = kLength}).value(); }
  std::unique_ptr<BatchLoader> Loader(const BatchLoaderOptions& options) {
    return BatchLoader::Create(Data(), options).value();
  }
  static void AppendSamples(const Batch& batch, std::vector<int64_t>* samples) {
    for (int64_t i = 0; i < batch.ids.size(0); ++i) samples->push_back(static_cast<int64_t>(batch.ids.At(i, 0)));
  }
  std::vector<int64_t> FirstSamples(int64_t count, const BatchLoaderOptions& options) {
    const auto loader = Loader(options);
    std::vector<int64_t> samples;
    while (static_cast<int64_t>(samples.size()) < count) AppendSamples(*loader->Next(), &samples);
    samples.resize(static_cast<size_t>(count));
    return samples;
  }

  std::vector<int32_t> tokens_;
};

TEST_F(BatchLoaderTest, GivesEverySampleOncePerEpochWithoutASeam) {
  std::vector<int64_t> samples = FirstSamples(3 * kSamples, {.batch_size = 5, .order = {.seed = 4}});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::sort(samples.begin() + epoch * kSamples, samples.begin() + (epoch + 1) * kSamples);
    for (int64_t i = 0; i < kSamples; ++i) EXPECT_EQ(samples[static_cast<size_t>(epoch * kSamples + i)], i);
  }
}

TEST_F(BatchLoaderTest, TheOrderIsTheSameForEveryBatchSizeAndQueue) {
  const std::vector<int64_t> expected = FirstSamples(60, {.batch_size = 1, .queue_batches = 1});
  for (int64_t batch_size : {2, 3, 7, 23}) {
    EXPECT_EQ(FirstSamples(60, {.batch_size = batch_size, .queue_batches = batch_size}), expected);
  }
}

TEST_F(BatchLoaderTest, RanksTogetherReadWhatOneRankReads) {
  const std::vector<int64_t> expected = FirstSamples(48, {.batch_size = 6});
  std::vector<std::unique_ptr<BatchLoader>> ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(Loader({.batch_size = 2, .rank = rank, .ranks = 3}));
  }
  std::vector<int64_t> samples;
  while (samples.size() < 48) {
    for (const auto& rank : ranks) AppendSamples(*rank->Next(), &samples);
  }
  EXPECT_EQ(samples, expected);
}

TEST_F(BatchLoaderTest, GoesOnWhereAnEarlierRunStopped) {
  const std::vector<int64_t> expected = FirstSamples(40, {.batch_size = 4});
  std::vector<int64_t> samples;
  int64_t cursor = 0;
  {
    const auto loader = Loader({.batch_size = 4, .queue_batches = 3});
    for (int i = 0; i < 4; ++i) AppendSamples(*loader->Next(), &samples);
    cursor = loader->next_cursor();  // the queue is ahead of it
  }
  EXPECT_EQ(cursor, 16);
  const auto loader = Loader({.batch_size = 4, .cursor = cursor});
  while (samples.size() < 40) AppendSamples(*loader->Next(), &samples);
  EXPECT_EQ(samples, expected);
}

TEST_F(BatchLoaderTest, EndsAtTheEndCursorWithASmallerBatch) {
  const auto loader = Loader({.batch_size = 5, .end_cursor = 12});
  EXPECT_EQ(loader->Next()->ids.shape(), (Shape{5, kLength}));
  EXPECT_EQ(loader->Next()->cursor, 5);
  EXPECT_EQ(loader->Next()->ids.shape(), (Shape{2, kLength}));
  EXPECT_EQ(loader->Next(), std::nullopt);
  EXPECT_EQ(loader->Next(), std::nullopt);
  EXPECT_EQ(loader->next_cursor(), 12);
}

TEST_F(BatchLoaderTest, EndsCleanlyWhenDestroyedEarly) {
  Loader({.batch_size = 3});  // nothing read; the thread may not even have begun
  {
    const auto loader = Loader({.batch_size = 3, .queue_batches = 2});
    loader->Next();
  }
  const auto full = Loader({.batch_size = 3, .queue_batches = 1});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread waits at a full queue
}

TEST_F(BatchLoaderTest, TakesItsMemoryFromTheContextOfItsMaker) {
  HostAllocator allocator;
  {
    Context context;
    context.cpu_allocator = &allocator;
    const ContextGuard guard(context);
    const auto loader = Loader({.batch_size = 3});
    const std::optional<Batch> batch = loader->Next();
    EXPECT_GE(allocator.stats()[MemoryTag::kStaging], batch->ids.bytes() + batch->targets.bytes());
  }
  EXPECT_EQ(allocator.stats().bytes, 0);
}

TEST_F(BatchLoaderTest, WhatStopsTheThreadIsThrownByNext) {
  HostAllocator allocator;
  allocator.SetLimit(1);
  Context context;
  context.cpu_allocator = &allocator;
  const ContextGuard guard(context);
  const auto loader = Loader({.batch_size = 3});
  EXPECT_THROW(loader->Next(), Error);
  EXPECT_THROW(loader->Next(), Error);
}

TEST_F(BatchLoaderTest, FewerSamplesThanOneBatchIsAnErrorWithBothNumbers) {
  tokens_.resize(7 * kLength + 1);
  EXPECT_EQ(BatchLoader::Create(Data(), {.batch_size = 4, .ranks = 2}).status().message(),
            "the data has 7 samples; one batch needs 8 (4 on each of 2 ranks)");
  EXPECT_EQ(BatchLoader::Create(Data(), {.batch_size = 9}).status().message(),
            "the data has 7 samples; one batch needs 9 (9 on each of 1 rank)");
  EXPECT_TRUE(BatchLoader::Create(Data(), {.batch_size = 7}).ok());
}

TEST_F(BatchLoaderTest, IllegalOptionsAreNamed) {
  const auto message = [&](const BatchLoaderOptions& options) {
    return std::string(BatchLoader::Create(Data(), options).status().message());
  };
  EXPECT_EQ(message({.batch_size = 0}), "batch loader: batch_size is 0, expected at least 1");
  EXPECT_EQ(message({.rank = 2, .ranks = 2}), "batch loader: rank 2 is outside 0..1");
  EXPECT_EQ(message({.cursor = -1}), "batch loader: cursor is -1, expected at least 0");
  EXPECT_EQ(message({.queue_batches = 0}), "batch loader: queue_batches is 0, expected at least 1");
}

}  // namespace
}  // namespace tessera::io
