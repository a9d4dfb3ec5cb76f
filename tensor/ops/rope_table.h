// SPDX-License-Identifier: Apache-2.0
// The frequencies of rotary positions and the table of their cosines and sines, both computed in f64.
// J. Su et al., "RoFormer", 2021: the pair i of a head of D features turns by position * base^(-2i/D).
//
//   RopeTable table({.head_dim = 128, .max_positions = 8192, .base = 500000, .llama3 = RopeScaling{}});
//   Tensor rows = table.Rows(64, DType::kF32, kCpu);   // (>= 64, 128): D/2 cosines, then D/2 sines, per position
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tensor/tensor.h"

namespace tessera {

// Llama 3's stretch of low frequencies ("rope_type": "llama3"): wavelengths longer than original_max_positions /
// low_freq_factor are multiplied by `factor`, those shorter than original_max_positions / high_freq_factor stay, and
// between the two the frequency is interpolated.
struct RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;
};

struct RopeOptions {
  int64_t head_dim = 0;       // even
  int64_t max_positions = 0;  // a later position is an error
  double base = 10000;
  std::optional<RopeScaling> llama3 = std::nullopt;
};

class RopeTable {
 public:
  explicit RopeTable(const RopeOptions& options);

  int64_t head_dim() const { return options_.head_dim; }
  int64_t max_positions() const { return options_.max_positions; }
  const std::vector<double>& inverse_frequencies() const { return inverse_frequencies_; }  // head_dim / 2

  // At least the first `positions` rows, contiguous. Made on demand and kept; a later, longer table leaves an earlier
  // one as it is. Safe from several threads.
  Tensor Rows(int64_t positions, DType dtype, Device device) const;

 private:
  RopeOptions options_;
  std::vector<double> inverse_frequencies_;
  mutable std::mutex mutex_;
  mutable Tensor rows_;  // the last one made
};

}  // namespace tessera
