// SPDX-License-Identifier: Apache-2.0
#include "nn/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/tape.h"
#include "tensor/error.h"

namespace tessera::nn {
namespace {

constexpr float kCutOff = -std::numeric_limits<float>::infinity();

void CheckLogits(std::span<const float> logits) {
  if (logits.empty()) throw Error("sampling: there are no logits");
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw Error(Str("sampling: logit ", i, " is ", logits[i], ", expected a number below infinity"));
    }
    any = any || logits[i] != kCutOff;
  }
  if (!any) throw Error("sampling: no logit is finite");
}

// Indexes by falling logit; ties by index.
std::vector<int64_t> Ranking(std::span<const float> logits) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return order;
}

std::vector<float> RowOf(const Tensor& logits) {  // (1, T, V) -> the last position
  if (logits.rank() != 3 || logits.size(0) != 1 || logits.size(1) < 1) {
    throw Error(Str("generate: logits must have shape (1, tokens, vocabulary), got ", logits.shape()));
  }
  const Layout row = logits.layout().Select(0, 0).Select(0, logits.size(1) - 1);
  const Tensor values = CopyTo(logits.WithLayout(row), DType::kF32);
  const float* data = values.Read().as<float>();
  return {data, data + values.numel()};
}

}  // namespace

void SamplingOptions::Validate() const {
  if (!(temperature >= 0) || std::isinf(temperature)) {
    throw Error(Str("sampling: temperature is ", temperature, ", expected 0 (greedy) or more"));
  }
  if (top_k < 0) throw Error(Str("sampling: top_k is ", top_k, ", expected 0 (all) or more"));
  if (!(top_p > 0 && top_p <= 1)) throw Error(Str("sampling: top_p is ", top_p, ", expected a number in (0, 1]"));
}

std::vector<float> SamplingProbabilities(std::span<const float> logits, const SamplingOptions& options) {
  options.Validate();
  CheckLogits(logits);
  const std::vector<int64_t> order = Ranking(logits);
  std::vector<float> probabilities(logits.size(), 0.0f);
  if (options.temperature == 0) {
    probabilities[static_cast<size_t>(order[0])] = 1;
    return probabilities;
  }
  // Everything below runs from the most likely token down, in f64, and is rounded once at the end.
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::vector<double> weights(kept);
  const double highest = logits[static_cast<size_t>(order[0])];
  for (size_t rank = 0; rank < kept; ++rank) {
    weights[rank] = std::exp((logits[static_cast<size_t>(order[rank])] - highest) / options.temperature);
  }
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1) {
    double cumulative = 0;
    const double wanted = options.top_p * sum;
    size_t nucleus = 0;
    while (nucleus < kept && cumulative < wanted) cumulative += weights[nucleus++];
    kept = std::max<size_t>(nucleus, 1);
    sum = cumulative;
  }
  for (size_t rank = 0; rank < kept; ++rank) {
    probabilities[static_cast<size_t>(order[rank])] = static_cast<float>(weights[rank] / sum);
  }
  return probabilities;
}

int64_t PickToken(std::span<const float> probabilities, double uniform) {
  double cumulative = 0;
  int64_t last = 0;  // rounding may leave the sum a little below `uniform`
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] <= 0) continue;
    cumulative += probabilities[i];
    last = static_cast<int64_t>(i);
    if (cumulative > uniform) break;
  }
  return last;
}

int64_t SampleToken(std::span<const float> logits, const SamplingOptions& options, RngKey key, uint64_t index) {
  return PickToken(SamplingProbabilities(logits, options), key.Uniform(index));
}

std::vector<int64_t> Generate(FunctionRef<Tensor(const Tensor& ids)> logits, std::span<const int64_t> prompt,
                              const GenerateOptions& options, FunctionRef<void(int64_t token)> on_token) {
  options.sampling.Validate();
  if (prompt.empty()) throw Error("generate: the prompt is empty; it needs at least one token");
  if (options.positions < 1) throw Error(Str("generate: positions is ", options.positions, ", expected at least 1"));
  const NoGrad no_grad;
  const RngKey key = RngKey(options.seed).With("generate");
  std::vector<int32_t> context(prompt.begin(), prompt.end());
  std::vector<int64_t> generated;
  for (int64_t i = 0; i < options.new_tokens; ++i) {
    const int64_t length = std::min(static_cast<int64_t>(context.size()), options.positions);
    const Tensor ids = Tensor::From(std::span<const int32_t>(context).last(static_cast<size_t>(length)), {1, length});
    const int64_t token = SampleToken(RowOf(logits(ids)), options.sampling, key, static_cast<uint64_t>(i));
    if (options.stop_token == token) break;
    generated.push_back(token);
    context.push_back(static_cast<int32_t>(token));
    on_token(token);
  }
  return generated;
}

}  // namespace tessera::nn
