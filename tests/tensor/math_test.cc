// SPDX-License-Identifier: Apache-2.0
// The f32 functions of cpu_math.h, through the unary row, against the C library in f64 over all magnitudes.
#include <cmath>
#include <limits>

#include "tensor/ops/unary.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

using ops::UnaryOp;

struct Function {
  UnaryOp op;
  double (*exact)(double);
  double ulps;       // in units of the last place of the exact value
  double extra = 0;  // per unit of |x|^3: an exponential of a rounded cube is as far off as its exponent is
  float low = -std::numeric_limits<float>::infinity();
};

double Sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

const Function kFunctions[] = {
    {UnaryOp::kExp, [](double x) { return std::exp(x); }, 1},
    {UnaryOp::kLog, [](double x) { return std::log(x); }, 1, 0, 0},
    {UnaryOp::kSqrt, [](double x) { return std::sqrt(x); }, 0.5001, 0, 0},
    {UnaryOp::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 1.6, 0, 0},
    {UnaryOp::kTanh, [](double x) { return std::tanh(x); }, 1.5},
    {UnaryOp::kSigmoid, Sigmoid, 2.5},
    {UnaryOp::kSilu, [](double x) { return x * Sigmoid(x); }, 3.5, 0, -87},
    {UnaryOp::kGeluTanh, [](double x) { return x * Sigmoid(1.5957691216057307 * (x + 0.044715 * x * x * x)); }, 5, 0.4,
     -8},
    {UnaryOp::kGeluErf, [](double x) { return x * 0.5 * std::erfc(-x * 0.70710678118654752); }, 8, 0, -13},
};

// Error in units of the last place of f32 at `exact`.
double UlpError(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
  const float nearest = static_cast<float>(exact);
  if (got == nearest) return 0;
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Every `step`-th pattern of f32.
void Sweep(uint64_t step) {
  for (const Function& function : kFunctions) {
    std::vector<float> values;
    double worst = 0;
    const auto flush = [&] {
      const Tensor x = Tensor::From(values, {static_cast<int64_t>(values.size())}), y = EmptyLike(x);
      ops::UnaryForward({.op = function.op, .x = x.Read(), .y = y.Write()});
      const float* got = y.Read().as<float>();
      for (size_t i = 0; i < values.size(); ++i) {
        const double v = values[i], allowed = function.ulps + function.extra * std::abs(v * v * v);
        const double error = UlpError(got[i], function.exact(v));
        worst = std::max(worst, std::isinf(allowed) ? 0 : error / allowed);
        ASSERT_LE(error, allowed) << ops::Name(function.op) << " of " << v << ": " << got[i];
      }
      values.clear();
    };
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (!(x >= function.low) || x > 1e30f) continue;
      values.push_back(x);
      if (values.size() == 65536) flush();
    }
    flush();
    ::testing::Test::RecordProperty(ops::Name(function.op), std::to_string(worst));
  }
}

TEST(Math, IsWithinUnitsOfTheLastPlaceOverAllMagnitudes) { Sweep(4093); }

TEST(Math, HandlesTheEdgesOfExp) {
  const float edges[] = {88.7228f, 88.72284f, 88.723f, 89, 1e30f, -87.33f, -87.34f, -100,
                         -103.97f, -104,      -1e30f,  0,  -0.0f, 1e-45f,  -1e-45f};
  const Tensor x = Tensor::From(std::vector<float>(std::begin(edges), std::end(edges)), {15}), y = EmptyLike(x);
  ops::UnaryForward({.op = UnaryOp::kExp, .x = x.Read(), .y = y.Write()});
  for (int64_t i = 0; i < 15; ++i) EXPECT_LE(UlpError(static_cast<float>(y.At(i)), std::exp(x.At(i))), 1) << x.At(i);
}

TEST(Math, GradientsAreWithinAFewUnitsOfOne) {
  struct Gradient {
    UnaryOp op;
    double (*exact)(double);
  };
  const Gradient gradients[] = {
      {UnaryOp::kSilu, [](double x) { return Sigmoid(x) * (1 + x * Sigmoid(-x)); }},
      {UnaryOp::kGeluTanh,
       [](double x) {
         const double s = Sigmoid(1.5957691216057307 * (x + 0.044715 * x * x * x));
         return s + x * s * (1 - s) * 1.5957691216057307 * (1 + 3 * 0.044715 * x * x);
       }},
      {UnaryOp::kGeluErf,
       [](double x) {
         return 0.5 * std::erfc(-x * 0.70710678118654752) + x * 0.3989422804014327 * std::exp(-0.5 * x * x);
       }},
  };
  std::vector<float> values;
  for (int i = -20000; i <= 20000; ++i) values.push_back(static_cast<float>(i) * 1e-3f);
  const Tensor x = Tensor::From(values, {static_cast<int64_t>(values.size())}), dx = EmptyLike(x);
  const Tensor dy = Full(x.shape(), DType::kF32, 1);
  for (const Gradient& gradient : gradients) {
    ops::UnaryBackward({.op = gradient.op, .dy = dy.Read(), .saved = x.Read(), .dx = dx.Write()});
    const float* got = dx.Read().as<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(got[i], gradient.exact(values[i]), 4e-7) << ops::Name(gradient.op) << " at " << values[i];
    }
  }
}

}  // namespace
}  // namespace tessera::testing
