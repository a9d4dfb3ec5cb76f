// SPDX-License-Identifier: Apache-2.0
#include "autograd/softmax.h"

#include <cmath>
#include <limits>

#include "autograd/custom.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// exp(x - max) / sum, or its logarithm, one element at a time; the gradient through the whole Jacobian.
std::vector<double> PlainRow(const double* x, int64_t width, bool log) {
  double max = -kInf, sum = 0;
  for (int64_t i = 0; i < width; ++i) max = std::max(max, x[i]);
  for (int64_t i = 0; i < width; ++i) sum += std::exp(x[i] - max);
  std::vector<double> y(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    y[static_cast<size_t>(i)] = log ? x[i] - max - std::log(sum) : std::exp(x[i] - max) / sum;
  }
  return y;
}

Tensor PlainSoftmax(const Input& x, bool log) {
  return CustomFunction(
      "plain_softmax", {x},
      [log](SavedValues& save, std::span<const Tensor> in) {
        save.Keep(0);
        const std::vector<double> values = in[0].ToVector();
        std::vector<double> y;
        for (int64_t row = 0; row < RowCount(in[0].shape()); ++row) {
          for (double value : PlainRow(values.data() + row * in[0].size(-1), in[0].size(-1), log)) y.push_back(value);
        }
        return CopyTo(Tensor::From(y, in[0].shape()), in[0].dtype());
      },
      [log](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        const Tensor x = saved[0];
        const std::vector<double> values = x.ToVector(), grad = dy.ToVector();
        const int64_t width = x.size(-1);
        std::vector<double> dx;
        for (int64_t row = 0; row < RowCount(x.shape()); ++row) {
          const std::vector<double> p = PlainRow(values.data() + row * width, width, false);
          for (int64_t i = 0; i < width; ++i) {
            double sum = 0;
            for (int64_t j = 0; j < width; ++j) {
              const double delta = i == j ? 1 : 0, p_i = p[static_cast<size_t>(i)], p_j = p[static_cast<size_t>(j)];
              sum += grad[static_cast<size_t>(row * width + j)] * (log ? delta - p_i : p_j * (delta - p_i));
            }
            dx.push_back(sum);
          }
        }
        return {CopyTo(Tensor::From(dx, x.shape()), x.dtype())};
      });
}

std::vector<OpCase> SoftmaxCases(bool log) {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& x, double range) {
    cases.push_back(
        {.name = name,
         .inputs = {{x, -range, range}},
         .run =
             [log](std::span<const Input> in) { return std::vector<Tensor>{log ? LogSoftmax(in[0]) : Softmax(in[0])}; },
         .composition = [log](std::span<const Input> in) { return std::vector<Tensor>{PlainSoftmax(in[0], log)}; },
         .layouts = Layouts::kDenseRows,
         .finite_difference_tolerance = 5e-7});  // sums of up to 600 logarithms lose digits
  };
  add("Rows", {3, 8}, 1);
  add("OneElement", {1, 1}, 1);
  add("OneDimension", {5}, 1);
  add("OddWidth", {2, 3, 37}, 2);
  add("Wide", {2, 300}, 4);
  add("ManyRows", {700, 3}, 1);
  add("NoRows", {0, 4}, 1);
  add("NoColumns", {3, 0}, 1);
  return cases;
}

TESSERA_OP_CASES(Softmax, SoftmaxCases(false));
TESSERA_OP_CASES(LogSoftmax, SoftmaxCases(true));

TEST(Softmax, MatchesPyTorch) {
  const OpFunction softmax = [](std::span<const Input> in) { return std::vector<Tensor>{Softmax(in[0])}; };
  ExpectMatchesGolden("softmax", {"x"}, softmax);
  ExpectMatchesGolden("softmax_wide", {"x"}, softmax);
}

class MaskedRows : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Softmax, MaskedRows, ::testing::Values(DType::kF64, DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(MaskedRows, GiveNothingAndTakeNoGradient) {
  const Tensor x = CopyTo(Tensor::From({-kInf, -kInf, -kInf, 1.0, -kInf, 1.0}, {2, 3}), GetParam());
  const Tensor dy = CopyTo(Tensor::From({1.0, 2.0, 3.0, 1.0, 2.0, 3.0}, {2, 3}), GetParam());
  for (bool log : {false, true}) {
    Tape tape;
    const Tensor watched = tape.Watch(x), y = log ? LogSoftmax(watched) : Softmax(watched);
    EXPECT_EQ(y.At(0, 1), log ? -kInf : 0.0);
    EXPECT_EQ(y.At(1, 1), log ? -kInf : 0.0);
    EXPECT_NEAR(y.At(1, 0), log ? -std::log(2.0) : 0.5, 4e-3);
    tape.Backward(y, dy);
    const std::vector<double> dx = tape.Grad(watched).ToVector();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(dx[i], 0.0) << i;
    for (size_t i = 3; i < 6; ++i) EXPECT_TRUE(std::isfinite(dx[i])) << i;
  }
}

TEST(Softmax, ANanSpoilsItsRowAndNoOther) {
  for (int64_t position : {0, 5, 40}) {
    std::vector<double> values(2 * 41, 0.5);
    values[static_cast<size_t>(position)] = std::nan("");
    const std::vector<double> y = Softmax(Tensor::From(values, {2, 41})).ToVector();
    for (size_t i = 0; i < 41; ++i) EXPECT_TRUE(std::isnan(y[i])) << "NaN at " << position << ", element " << i;
    for (size_t i = 41; i < 82; ++i) EXPECT_DOUBLE_EQ(y[i], 1.0 / 41) << i;
  }
}

TEST(Softmax, TakesAGradientThatCameThroughATransposedView) {
  const Tensor x = RandomTensor("x", {3, 4}), dy = RandomTensor("dy", {3, 4});
  const Tensor turned = CopyTo(dy.WithLayout(dy.layout().Transpose(0, 1)), DType::kF64);
  std::vector<Tensor> grads;
  for (const Tensor& gradient : {dy, turned.WithLayout(turned.layout().Transpose(0, 1))}) {
    Tape tape;
    const Tensor watched = tape.Watch(x);
    tape.Backward(Softmax(watched), gradient);
    grads.push_back(tape.Grad(watched));
  }
  EXPECT_TRUE(BitEqual(grads[0], grads[1]));
}

TEST(Softmax, RefusesWhatItCannotTake) {
  EXPECT_EQ(ErrorOf([] { Softmax(Tensor::From({1.0}, {})); }), "softmax: x must have at least one dimension");
  EXPECT_EQ(ErrorOf([] { Softmax(Tensor::From<int64_t>({1}, {1})); }),
            "softmax: x is i64, expected f32, bf16, f16 or f64");
  const Tensor x = RandomTensor("x", {3, 4});
  EXPECT_EQ(
      ErrorOf([&] { LogSoftmax(x.WithLayout(x.layout().Transpose(0, 1))); }),
      "log_softmax: x must have a dense last dimension, got shape (4, 3) strides (1, 4) offset 0; use Contiguous()");
}

}  // namespace
}  // namespace tessera::testing
