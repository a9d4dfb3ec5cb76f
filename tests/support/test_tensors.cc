// SPDX-License-Identifier: Apache-2.0
// What op_case.h offers besides the cases: a parameter for tests, comparisons, random tensors.
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/ops/fill.h"
#include "tensor/rng.h"
#include "tests/support/op_case.h"

namespace tessera::testing {

TestParameter::TestParameter(std::string path, const Tensor& data, DType grad_dtype)
    : path_(std::move(path)), data_(CopyTo(data, data.dtype(), MemoryTag::kParams)) {
  grad_ = EmptyOn(data.device(), data.shape(), grad_dtype, MemoryTag::kGrads);
  ops::Fill({.out = grad_.Write(), .value = std::nan("")});
}

Tensor TestParameter::Data() {
  ++data_count;
  return data_;
}

GradTarget TestParameter::NextGradTarget() { return {grad_, target_count++ > 0}; }

double MaxDifference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  const std::vector<double> va = a.ToVector(), vb = b.ToVector();
  double worst = 0;
  for (size_t i = 0; i < va.size(); ++i) {
    if (std::isnan(va[i]) && std::isnan(vb[i])) continue;
    if (va[i] == vb[i]) continue;  // equal infinities too
    const double difference = std::abs(va[i] - vb[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return worst;
}

double MaxMagnitude(const Tensor& a) {
  double largest = 0;
  for (double value : a.ToVector()) largest = std::max(largest, std::abs(value));
  return largest;
}

bool BitEqual(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor ca = CopyTo(a, a.dtype()), cb = CopyTo(b, b.dtype());
  return a.numel() == 0 || std::memcmp(ca.Read().data, cb.Read().data, static_cast<size_t>(ca.bytes())) == 0;
}

Tensor RandomTensor(const std::string& key, const Shape& shape, double low, double high, DType dtype) {
  const RngKey rng = RngKey(1).With(key);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = low + (high - low) * rng.Uniform(i);
  const Tensor result = Tensor::From(values, shape);
  return dtype == DType::kF64 ? result : CopyTo(result, dtype);
}

std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

}  // namespace tessera::testing
