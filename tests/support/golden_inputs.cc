// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden_inputs.h"

#include <string_view>
#include <vector>

#include "tensor/ops/copy.h"

namespace tessera::testing {
namespace {

uint64_t SplitMix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace

void FillGoldenWeights(nn::Module& module) {
  for (nn::Parameter* parameter : module.parameters()) {
    const bool vector = parameter->shape().rank() == 1;
    const bool norm_weight = vector && parameter->name() == "weight";
    const double centre = norm_weight ? 1 : 0;
    const double scale = norm_weight ? 0.1 : vector ? 0.02 : 0.08;
    const uint64_t base = Fnv1a64(parameter->path());
    std::vector<double> values(static_cast<size_t>(parameter->numel()));
    for (size_t k = 0; k < values.size(); ++k) {
      const double unit = static_cast<double>(SplitMix64(base + k) >> 11) * 0x1p-53;
      values[k] = centre + scale * (2 * unit - 1);
    }
    const Tensor source = Tensor::From(values, parameter->shape());
    parameter->Edit([&](Tensor& data) { ops::Copy({.x = source.Read(), .out = data.Write()}); });
  }
}

GoldenBatch MakeGoldenBatch(int64_t step, int64_t first, int64_t rows) {
  std::vector<int64_t> ids, targets;
  for (int64_t row = first; row < first + rows; ++row) {
    const uint64_t r = static_cast<uint64_t>(step * kGoldenBatchSize + row);
    int64_t token = static_cast<int64_t>(SplitMix64(1000003 * r) % kGoldenVocab);
    for (uint64_t t = 0; t < kGoldenTokens; ++t) {
      ids.push_back(token);
      token = (5 * token + 7 + static_cast<int64_t>(SplitMix64(1000003 * r + t + 1) % 3)) % kGoldenVocab;
      const bool ignored = SplitMix64(7777 + 17 * r + t) % 11 == 0;
      targets.push_back(ignored ? -100 : token);
    }
  }
  return {Tensor::From(ids, {rows, kGoldenTokens}), Tensor::From(targets, {rows, kGoldenTokens})};
}

}  // namespace tessera::testing
