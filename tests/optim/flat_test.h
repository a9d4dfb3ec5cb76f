// SPDX-License-Identifier: Apache-2.0
// What the optimizer tests share: ranges with values, their bytes, and the golden traces.
#pragma once

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tensor/rng.h"

namespace tessera::optim {

inline std::string Bytes(const Tensor& x) {
  const auto* data = static_cast<const char*>(x.Read().data) + x.layout().offset() * ItemSize(x.dtype());
  return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(x.bytes()));
}

// Values of both signs from 1e-4 to 1, with a zero now and then.
inline std::vector<double> Values(const char* key, int64_t n) {
  const RngKey rng = RngKey(7).With(key);
  std::vector<double> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = rng.Bits(static_cast<uint64_t>(i));
    const double size = std::pow(10.0, -4.0 * (bits >> 8) / 0x1p24);
    values[static_cast<size_t>(i)] = bits % 61 == 0 ? 0.0 : ((bits & 1) != 0 ? -size : size);
  }
  return values;
}

inline Tensor TensorOf(const std::vector<double>& values, DType dtype) {
  return CopyTo(Tensor::From<double>(values, {static_cast<int64_t>(values.size())}), dtype);
}

inline Tensor Part(const Tensor& x, int64_t begin, int64_t end) {
  return x.WithLayout(x.layout().Narrow(0, begin, end - begin));
}

// The tensors behind a FlatSpan.
struct Range {
  Tensor master, gradient;
  std::vector<Tensor> states;
  Tensor low_precision;
  bool decay = true;

  Range(const Optimizer& optimizer, const Tensor& master_values, const Tensor& gradient_values)
      : master(CopyTo(master_values, master_values.dtype())), gradient(gradient_values) {
    for (int i = 0; i < optimizer.state_count(); ++i) states.push_back(Zeros(master.shape(), master.dtype()));
  }

  FlatSpan Span() const { return Span(0, master.numel()); }
  FlatSpan Span(int64_t begin, int64_t end) const {
    FlatSpan span{
        .master = Part(master, begin, end).Write(), .gradient = Part(gradient, begin, end).Read(), .decay = decay};
    for (size_t i = 0; i < states.size(); ++i) span.states[i] = Part(states[i], begin, end).Write();
    if (low_precision.defined()) span.low_precision = Part(low_precision, begin, end).Write();
    return span;
  }
  // Everything an update may write.
  std::string AllBytes() const {
    std::string all = Bytes(master);
    for (const Tensor& state : states) all += Bytes(state);
    if (low_precision.defined()) all += Bytes(low_precision);
    return all;
  }
};

inline std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "an error is one line";
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

#define EXPECT_ERROR(text, ...)                                                      \
  do {                                                                               \
    const std::string message = ErrorOf([&] { __VA_ARGS__; });                       \
    EXPECT_NE(message.find(text), std::string::npos) << "the error is: " << message; \
  } while (false)

// The tensors of tests/golden/ops.txt whose names start with `prefix`, row-major.
inline std::map<std::string, std::vector<double>> Golden(const std::string& prefix) {
  std::map<std::string, std::vector<double>> tensors;
  std::ifstream file(TESSERA_GOLDEN_FOLDER "/ops.txt");
  EXPECT_TRUE(file.good()) << TESSERA_GOLDEN_FOLDER "/ops.txt";
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, name;
    int rank = 0;
    words >> kind >> name >> rank;
    if (kind != "tensor" || name.rfind(prefix, 0) != 0) continue;
    int64_t size = 0;
    for (int i = 0; i < rank; ++i) words >> size;
    std::vector<double> values;
    for (double value = 0; words >> value;) values.push_back(value);
    tensors[name] = values;
  }
  return tensors;
}

}  // namespace tessera::optim
