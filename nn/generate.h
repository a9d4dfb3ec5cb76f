// SPDX-License-Identifier: Apache-2.0
// Text from a language model: how the next token is chosen, and the loop around it.
//
//   model.SetTraining(false);
//   const auto logits = [&](const Tensor& ids) { return model(ids); };
//   std::vector<int64_t> tokens = nn::Generate(logits, prompt, {.new_tokens = 200, .positions = 128,
//                                                               .sampling = {.temperature = 0.8, .top_k = 50}});
//
// The same seed gives the same tokens on any machine that gives the same logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tensor/function_ref.h"
#include "tensor/rng.h"
#include "tensor/tensor.h"

namespace tessera::nn {

// Applied in this order, as HuggingFace does: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 1;  // 0: greedy, the most likely token always
  int64_t top_k = 0;       // keep the k most likely tokens; 0: all
  double top_p = 1;        // keep the fewest tokens whose probabilities sum to p or more; at least one
  void Validate() const;   // throws with the field, the value and what is legal
};

// Probabilities (sum 1; 0 for what is cut off). Equal logits count as ordered by index, lowest first. Throws on NaN, on
// +infinity, and when no logit is finite.
std::vector<float> SamplingProbabilities(std::span<const float> logits, const SamplingOptions& options);

// The first index whose cumulative probability exceeds `uniform`, a number in [0, 1).
int64_t PickToken(std::span<const float> probabilities, double uniform);

// Both together; `index` picks the random number of the key's stream.
int64_t SampleToken(std::span<const float> logits, const SamplingOptions& options, RngKey key, uint64_t index);

struct GenerateOptions {
  int64_t new_tokens = 100;
  int64_t positions = 1024;  // of the model; a longer context loses its beginning
  SamplingOptions sampling = {};
  uint64_t seed = 0;
  std::optional<int64_t> stop_token = {};  // ends the text, and is not part of it
};

// The new tokens only. `logits` maps ids (1, T) i32 to (1, T, V) in any floating dtype, on the CPU. Records nothing.
std::vector<int64_t> Generate(
    FunctionRef<Tensor(const Tensor& ids)> logits, std::span<const int64_t> prompt, const GenerateOptions& options,
    FunctionRef<void(int64_t token)> on_token = [](int64_t) {});

}  // namespace tessera::nn
