// SPDX-License-Identifier: Apache-2.0
#include "io/token_dataset.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/error.h"

namespace tessera::io {
namespace {

std::vector<uint8_t> Bytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return bytes;
}

std::string MessageFor(std::span<const uint8_t> tokens, const TokenDatasetOptions& options) {
  return std::string(TokenDataset::Create(tokens, nullptr, options).status().message());
}

TEST(TokenDataset, TargetsAreTheNextTokens) {
  const std::vector<uint8_t> bytes = Bytes(10);
  const TokenDataset data = TokenDataset::Create(bytes, nullptr, {.sequence_tokens = 3}).value();
  ASSERT_EQ(data.size(), 3);
  const Batch batch = data.MakeBatch(SampleOrder(3, {.shuffle = false}), 0, 3);
  EXPECT_EQ(batch.ids.ToVector(), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.targets.ToVector(), (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(TokenDataset, LeavesOutOnlyWhatFillsNoSample) {
  for (int64_t count : {4, 5, 6, 7, 100, 101}) {
    const std::vector<uint8_t> bytes = Bytes(count);
    EXPECT_EQ(TokenDataset::Create(bytes, nullptr, {.sequence_tokens = 3}).value().size(), (count - 1) / 3);
  }
}

TEST(TokenDataset, ReadsI32TokensAlike) {
  const std::vector<int32_t> tokens = {70000, 1, 2, 3, 4};
  const TokenDataset data = TokenDataset::Create(tokens, nullptr, {.sequence_tokens = 4, .vocab_size = 70001}).value();
  std::vector<int32_t> sample(5);
  data.CopySample(0, sample);
  EXPECT_EQ(sample, tokens);
}

TEST(TokenDataset, TextShorterThanOneSampleIsAnErrorWithBothNumbers) {
  EXPECT_EQ(MessageFor(Bytes(100), {.sequence_tokens = 128}),
            "the text has 100 tokens; sequence length 128 needs at least 129 (inputs and shifted targets)");
  EXPECT_EQ(MessageFor(Bytes(128), {.sequence_tokens = 128}),
            "the text has 128 tokens; sequence length 128 needs at least 129 (inputs and shifted targets)");
  EXPECT_EQ(MessageFor(Bytes(129), {.sequence_tokens = 128}), "");
  EXPECT_EQ(MessageFor({}, {}), "there are no tokens: the data is empty");
}

TEST(TokenDataset, ATokenOutsideTheVocabularyIsFoundAtOpen) {
  EXPECT_EQ(MessageFor(Bytes(10), {.sequence_tokens = 4, .vocab_size = 8}),
            "token 8 at position 8 is outside the vocabulary 0..7");
  const std::vector<int32_t> negative = {1, -1, 2};
  EXPECT_EQ(TokenDataset::Create(negative, nullptr, {.sequence_tokens = 2}).status().message(),
            "token -1 at position 1 is outside the vocabulary 0..255");
}

TEST(TokenDataset, RefusesASampleOutsideAndAnotherDatasetsOrder) {
  const std::vector<uint8_t> bytes = Bytes(9);
  const TokenDataset data = TokenDataset::Create(bytes, nullptr, {.sequence_tokens = 4}).value();
  std::vector<int32_t> sample(5), small(4);
  EXPECT_THROW(data.CopySample(2, sample), Error);
  EXPECT_THROW(data.CopySample(-1, sample), Error);
  EXPECT_THROW(data.CopySample(0, small), Error);
  EXPECT_THROW(data.MakeBatch(SampleOrder(3), 0, 1), Error);
}

TEST(SampleOrder, GivesEverySampleOncePerEpochAndAnotherOrderInTheNext) {
  const SampleOrder order(50, {.seed = 7});
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t cursor = 0; cursor < 150; ++cursor) {
    epochs[static_cast<size_t>(order.EpochOf(cursor))].push_back(order.At(cursor));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (std::vector<int64_t>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(epoch[static_cast<size_t>(i)], i);
  }
}

TEST(SampleOrder, DependsOnTheSeed) {
  const SampleOrder a(50, {.seed = 1}), b(50, {.seed = 2});
  int equal = 0;
  for (int64_t cursor = 0; cursor < 50; ++cursor) equal += a.At(cursor) == b.At(cursor);
  EXPECT_LT(equal, 10);
}

}  // namespace
}  // namespace tessera::io
