// SPDX-License-Identifier: Apache-2.0
// How a parameter's first values are drawn. Element i of the parameter at `path` is a function of (seed, path, i) alone, so
// every world size and every sharding starts from the same bits.
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace tessera::nn {

struct Init {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double value = 0;  // the constant, the standard deviation, or the bound of [-value, value)

  static Init Zeros() { return {Kind::kConstant, 0}; }
  static Init Ones() { return {Kind::kConstant, 1}; }
  static Init Constant(double value) { return {Kind::kConstant, value}; }
  static Init Normal(double stddev) { return {Kind::kNormal, stddev}; }
  static Init Uniform(double bound) { return {Kind::kUniform, bound}; }
  // PyTorch's default for Linear: Kaiming uniform with a = sqrt(5), which is a bound of 1/sqrt(fan_in).
  static Init KaimingUniform(int64_t fan_in);
};

// Writes elements [begin, begin + out.numel()) of the parameter's row-major values to `out` (1-D, contiguous, CPU).
void FillInit(const Init& init, uint64_t seed, std::string_view path, int64_t begin, const Tensor& out);

}  // namespace tessera::nn
