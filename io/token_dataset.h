// SPDX-License-Identifier: Apache-2.0
// Samples for a language model: a run of tokens cut into sequences of T, each read with the token that follows it.
//
//   TokenDataset data = TokenDataset::Create(tokens, owner, {.sequence_tokens = 128, .vocab_size = 256}).value();
//   data.size()                       // samples: (tokens - 1) / 128
//   Batch batch = data.MakeBatch(SampleOrder(data.size(), {.seed = 1}), cursor, 32);   // ids and targets (32, 128)
//
// Where a run stands is one number, the cursor: how many samples were read since the start, over all epochs and all
// ranks. The order depends on (seed, epoch) alone, so it is the same for every batch size and every number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "io/permutation.h"
#include "tensor/tensor.h"

namespace tessera::io {

struct Batch {
  Tensor ids;          // (B, T) i32, on the CPU
  Tensor targets;      // (B, T) i32: the next token of each
  int64_t cursor = 0;  // of its first sample
};

struct SampleOrderOptions {
  uint64_t seed = 0;
  bool shuffle = true;
};

// cursor -> sample; each sample exactly once in each epoch of `samples`.
class SampleOrder {
 public:
  using Options = SampleOrderOptions;
  explicit SampleOrder(int64_t samples, const Options& options = {});

  int64_t samples() const { return samples_; }
  int64_t EpochOf(int64_t cursor) const { return cursor / samples_; }
  int64_t At(int64_t cursor) const;

 private:
  int64_t samples_;
  Options options_;
};

struct TokenDatasetOptions {
  int64_t sequence_tokens = 128;
  int64_t vocab_size = 256;
};

class TokenDataset {
 public:
  // Borrows `tokens`, which `owner` keeps alive. An error when there is not one whole sample, or when a token is
  // outside the vocabulary.
  static absl::StatusOr<TokenDataset> Create(std::span<const uint8_t> tokens, std::shared_ptr<const void> owner,
                                             const TokenDatasetOptions& options);
  static absl::StatusOr<TokenDataset> Create(std::span<const int32_t> tokens, std::shared_ptr<const void> owner,
                                             const TokenDatasetOptions& options);

  int64_t size() const { return (tokens_ - 1) / options_.sequence_tokens; }
  int64_t token_count() const { return tokens_; }
  int64_t sequence_tokens() const { return options_.sequence_tokens; }

  // Sample i is tokens [i * T, i * T + T]: T + 1 of them, the last shared with the next sample.
  void CopySample(int64_t sample, std::span<int32_t> out) const;
  // The samples at [cursor, cursor + count) of an order.
  Batch MakeBatch(const SampleOrder& order, int64_t cursor, int64_t count) const;

 private:
  TokenDataset(const void* data, bool bytes, int64_t tokens, std::shared_ptr<const void> owner,
               const TokenDatasetOptions& options);

  std::shared_ptr<const void> owner_;
  const void* data_;
  bool bytes_;  // u8, else i32
  int64_t tokens_;
  TokenDatasetOptions options_;
};

}  // namespace tessera::io
