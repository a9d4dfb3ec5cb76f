// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {
namespace {

double Scaled(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = static_cast<double>(scaling.original_max_positions);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double keep =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - keep) * frequency / scaling.factor + keep * frequency;
}

}  // namespace

RopeTable::RopeTable(const RopeOptions& options) : options_(options) {
  if (options.head_dim <= 0 || options.head_dim % 2 != 0) {
    throw Error(Str("rope: head_dim must be positive and even, got ", options.head_dim));
  }
  if (options.max_positions < 0) throw Error(Str("rope: max_positions is ", options.max_positions));
  if (!(options.base > 0)) throw Error(Str("rope: base must be positive, got ", options.base));
  if (const auto& scaling = options.llama3) {
    if (!(scaling->factor > 0) || scaling->original_max_positions <= 0 || !(scaling->low_freq_factor > 0) ||
        !(scaling->high_freq_factor > scaling->low_freq_factor)) {
      throw Error(
          Str("rope: llama3 scaling wants factor > 0, original_max_positions > 0 and 0 < low_freq_factor < "
              "high_freq_factor, got ",
              scaling->factor, ", ", scaling->original_max_positions, ", ", scaling->low_freq_factor, ", ",
              scaling->high_freq_factor));
    }
  }
  for (int64_t i = 0; i < options.head_dim; i += 2) {
    double frequency = std::pow(options.base, -static_cast<double>(i) / static_cast<double>(options.head_dim));
    if (options.llama3) frequency = Scaled(frequency, *options.llama3);
    inverse_frequencies_.push_back(frequency);
  }
}

Tensor RopeTable::Rows(int64_t positions, DType dtype, Device device) const {
  if (positions > options_.max_positions) {
    throw Error(Str("rope: position ", positions - 1, " needs ", positions, " positions, the table has ",
                    options_.max_positions));
  }
  const std::lock_guard lock(mutex_);
  if (rows_.defined() && rows_.size(0) >= positions && rows_.dtype() == dtype && rows_.device() == device) return rows_;
  // Generation asks for one position more each time: grow by doubling.
  const int64_t count = std::min(std::max<int64_t>(2 * positions, 64), options_.max_positions);
  Tensor rows = EmptyOn(device, {count, options_.head_dim}, dtype, MemoryTag::kWorkspace);
  if (device.is_cuda()) throw Error("rope: the table has no CUDA copy yet");
  if (!device.is_meta()) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(count * options_.head_dim));
    for (int64_t position = 0; position < count; ++position) {
      for (double f : inverse_frequencies_) values.push_back(std::cos(static_cast<double>(position) * f));
      for (double f : inverse_frequencies_) values.push_back(std::sin(static_cast<double>(position) * f));
    }
    rows = CopyTo(Tensor::From(values, rows.shape()), dtype, MemoryTag::kWorkspace);
  }
  rows_ = rows;
  return rows_;
}

}  // namespace tessera
