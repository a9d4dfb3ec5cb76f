// SPDX-License-Identifier: Apache-2.0
#include "io/token_dataset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/error.h"

namespace tessera::io {
namespace {

template <class T>
absl::Status CheckTokens(std::span<const T> tokens, const TokenDatasetOptions& options) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (options.sequence_tokens < 1) {
    return absl::InvalidArgumentError(Str("the sequence length is ", options.sequence_tokens, ", expected at least 1"));
  }
  if (tokens.empty()) return absl::InvalidArgumentError("there are no tokens: the data is empty");
  if (count < options.sequence_tokens + 1) {
    return absl::InvalidArgumentError(Str("the text has ", count, " tokens; sequence length ", options.sequence_tokens,
                                          " needs at least ", options.sequence_tokens + 1,
                                          " (inputs and shifted targets)"));
  }
  if (sizeof(T) == 1 && options.vocab_size >= 256) return absl::OkStatus();
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](T token) {
    return static_cast<int64_t>(token) < 0 || static_cast<int64_t>(token) >= options.vocab_size;
  });
  if (bad == tokens.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(Str("token ", static_cast<int64_t>(*bad), " at position ", bad - tokens.begin(),
                                        " is outside the vocabulary 0..", options.vocab_size - 1));
}

}  // namespace

SampleOrder::SampleOrder(int64_t samples, const Options& options) : samples_(samples), options_(options) {
  if (samples < 1) throw Error(Str("sample order: ", samples, " samples, expected at least 1"));
}

int64_t SampleOrder::At(int64_t cursor) const {
  if (cursor < 0) throw Error(Str("sample order: cursor is ", cursor, ", expected 0 or more"));
  const int64_t position = cursor % samples_;
  if (!options_.shuffle) return position;
  const RngKey key = RngKey(options_.seed).With("sample order").With(static_cast<uint64_t>(EpochOf(cursor)));
  return Permutation(samples_, key)[position];
}

TokenDataset::TokenDataset(const void* data, bool bytes, int64_t tokens, std::shared_ptr<const void> owner,
                           const TokenDatasetOptions& options)
    : owner_(std::move(owner)), data_(data), bytes_(bytes), tokens_(tokens), options_(options) {}

absl::StatusOr<TokenDataset> TokenDataset::Create(std::span<const uint8_t> tokens, std::shared_ptr<const void> owner,
                                                  const TokenDatasetOptions& options) {
  if (absl::Status status = CheckTokens(tokens, options); !status.ok()) return status;
  return TokenDataset(tokens.data(), true, static_cast<int64_t>(tokens.size()), std::move(owner), options);
}

absl::StatusOr<TokenDataset> TokenDataset::Create(std::span<const int32_t> tokens, std::shared_ptr<const void> owner,
                                                  const TokenDatasetOptions& options) {
  if (absl::Status status = CheckTokens(tokens, options); !status.ok()) return status;
  return TokenDataset(tokens.data(), false, static_cast<int64_t>(tokens.size()), std::move(owner), options);
}

void TokenDataset::CopySample(int64_t sample, std::span<int32_t> out) const {
  const int64_t length = options_.sequence_tokens;
  if (sample < 0 || sample >= size()) throw Error(Str("token dataset: sample ", sample, " is outside 0..", size() - 1));
  if (static_cast<int64_t>(out.size()) != length + 1) {
    throw Error(Str("token dataset: a sample has ", length + 1, " tokens, got room for ", out.size()));
  }
  const int64_t first = sample * length;
  if (bytes_) {
    std::copy_n(static_cast<const uint8_t*>(data_) + first, length + 1, out.begin());
  } else {
    std::copy_n(static_cast<const int32_t*>(data_) + first, length + 1, out.begin());
  }
}

Batch TokenDataset::MakeBatch(const SampleOrder& order, int64_t cursor, int64_t count) const {
  if (order.samples() != size()) {
    throw Error(Str("token dataset: the order is of ", order.samples(), " samples, the data has ", size()));
  }
  const int64_t length = options_.sequence_tokens;
  Batch batch{.ids = EmptyOn(kCpu, {count, length}, DType::kI32, MemoryTag::kStaging),
              .targets = EmptyOn(kCpu, {count, length}, DType::kI32, MemoryTag::kStaging),
              .cursor = cursor};
  int32_t* ids = batch.ids.Write().as<int32_t>();
  int32_t* targets = batch.targets.Write().as<int32_t>();
  std::vector<int32_t> sample(static_cast<size_t>(length) + 1);
  for (int64_t i = 0; i < count; ++i) {
    CopySample(order.At(cursor + i), sample);
    std::copy(sample.begin(), sample.end() - 1, ids + i * length);
    std::copy(sample.begin() + 1, sample.end(), targets + i * length);
  }
  return batch;
}

}  // namespace tessera::io
