// SPDX-License-Identifier: Apache-2.0
// The linear op row against plain loops in f64 (the products themselves are tested in gemm_test.cc).
#include "tensor/ops/linear.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/context.h"
#include "tensor/rng.h"
#include "tensor/tensor.h"
#include "tensor/thread_pool.h"

namespace tessera {
namespace {

Tensor Random(const Shape& shape, DType dtype, uint64_t seed) {
  const RngKey key(seed);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.Uniform(i) - 1;
  return CopyTo(Tensor::From(values, shape), dtype);
}

// Relative to the largest value: the rounding of sums, and of one store.
double Tolerance(DType dtype, double largest) {
  switch (dtype) {
    case DType::kF64:
      return largest * 1e-13;
    case DType::kF32:
      return largest * 1e-5;
    case DType::kF16:
      return largest / 1800;
    default:
      return largest / 220;
  }
}

void ExpectNear(const Tensor& got, const std::vector<double>& expected, DType worst) {
  const std::vector<double> values = got.ToVector();
  ASSERT_EQ(values.size(), expected.size());
  double largest = 1;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], Tolerance(worst, largest)) << "element " << i;
  }
}

// sum over k of a[i * a_row + k * a_step] * b[j * b_row + k * b_step].
std::vector<double> Product(int64_t m, int64_t n, int64_t k, const std::vector<double>& a, int64_t a_row,
                            int64_t a_step, const std::vector<double>& b, int64_t b_row, int64_t b_step) {
  std::vector<double> out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        out[static_cast<size_t>(i * n + j)] +=
            a[static_cast<size_t>(i * a_row + l * a_step)] * b[static_cast<size_t>(j * b_row + l * b_step)];
      }
    }
  }
  return out;
}

struct Sizes {
  int64_t rows, in, out;
};
constexpr Sizes kSizes[] = {{12, 7, 5}, {1, 1, 1}, {0, 4, 3}, {6, 0, 3}, {6, 4, 0}, {150, 33, 129}, {70, 300, 70}};

TEST(Linear, ForwardIsXTimesTheTransposedWeightPlusBias) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, in, out] : kSizes) {
      const Tensor x = Random({rows, in}, dtype, 1), weight = Random({out, in}, dtype, 2),
                   bias = Random({out}, dtype, 3);
      const Tensor y = Empty({rows, out}, dtype);
      std::vector<double> expected = Product(rows, out, in, x.ToVector(), in, 1, weight.ToVector(), in, 1);
      ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .y = y.Write()});
      ExpectNear(y, expected, dtype);
      ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .bias = bias.Read(), .y = y.Write()});
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.At(static_cast<int64_t>(i) % out);
      ExpectNear(y, expected, dtype);
    }
  }
}

TEST(Linear, ForwardWithGeluKeepsItsInput) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor x = Random({30, 20}, dtype, 1), weight = Random({40, 20}, dtype, 2), bias = Random({40}, dtype, 3);
    const Tensor y = Empty({30, 40}, dtype), pre = Empty({30, 40}, dtype), alone = Empty({30, 40}, dtype);
    ops::LinearForward({.x = x.Read(),
                        .weight = weight.Read(),
                        .bias = bias.Read(),
                        .y = y.Write(),
                        .gelu = true,
                        .pre_activation = pre.Write()});
    ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .bias = bias.Read(), .y = alone.Write(), .gelu = true});
    EXPECT_EQ(alone.ToVector(), y.ToVector());
    std::vector<double> expected = Product(30, 40, 20, x.ToVector(), 20, 1, weight.ToVector(), 20, 1);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.At(static_cast<int64_t>(i) % 40);
    ExpectNear(pre, expected, dtype);
    for (double& s : expected) s = 0.5 * s * (1 + std::tanh(std::sqrt(2 / M_PI) * (s + 0.044715 * s * s * s)));
    ExpectNear(y, expected, dtype);
  }
}

TEST(Linear, BackwardGivesTheThreeGradients) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, in, out] : kSizes) {
      const Tensor x = Random({rows, in}, dtype, 1), weight = Random({out, in}, dtype, 2),
                   dy = Random({rows, out}, dtype, 3);
      const std::vector<double> dx_expected = Product(rows, in, out, dy.ToVector(), out, 1, weight.ToVector(), 1, in);
      const std::vector<double> dw_expected = Product(out, in, rows, dy.ToVector(), 1, out, x.ToVector(), 1, in);
      const std::vector<double> db_expected =
          Product(out, 1, rows, dy.ToVector(), 1, out, std::vector<double>(static_cast<size_t>(rows), 1), 0, 1);
      for (DType target : {dtype, DType::kF32}) {
        if (dtype == DType::kF64 && target == DType::kF32) continue;
        for (bool accumulate : {false, true}) {
          const Tensor dx = Full({rows, in}, dtype, accumulate ? 0.5 : NAN);
          const Tensor dweight = Full({out, in}, target, accumulate ? 0.5 : NAN);
          const Tensor dbias = Full({out}, target, accumulate ? 0.5 : NAN);
          ops::LinearBackward({.dy = dy.Read(),
                               .x = x.Read(),
                               .weight = weight.Read(),
                               .dx = dx.Write(),
                               .dweight = dweight.Write(),
                               .dbias = dbias.Write(),
                               .accumulate_dx = accumulate,
                               .accumulate_dweight = accumulate,
                               .accumulate_dbias = accumulate});
          const auto added = [&](std::vector<double> values) {
            for (double& value : values) value += accumulate ? 0.5 : 0;
            return values;
          };
          ExpectNear(dx, added(dx_expected), dtype);
          ExpectNear(dweight, added(dw_expected), target);
          ExpectNear(dbias, added(db_expected), target);
        }
      }
    }
  }
}

TEST(Linear, EachGradientNeedsOnlyItsOwnInputs) {
  const Tensor x = Random({6, 4}, DType::kF32, 1), weight = Random({5, 4}, DType::kF32, 2);
  const Tensor dy = Random({6, 5}, DType::kF32, 3);
  const Tensor dx = Empty({6, 4}, DType::kF32), dweight = Empty({5, 4}, DType::kF32), dbias = Empty({5}, DType::kF32);
  ops::LinearBackward({.dy = dy.Read(), .dbias = dbias.Write()});
  ops::LinearBackward({.dy = dy.Read(), .x = x.Read(), .dweight = dweight.Write()});
  ops::LinearBackward({.dy = dy.Read(), .weight = weight.Read(), .dx = dx.Write()});
  EXPECT_NEAR(dbias.At(2), dy.At(0, 2) + dy.At(1, 2) + dy.At(2, 2) + dy.At(3, 2) + dy.At(4, 2) + dy.At(5, 2), 1e-6);
}

TEST(Linear, LeadingDimensionsAreRows) {
  const Tensor memory = Random({2, 3, 10}, DType::kF32, 1), weight = Random({5, 4}, DType::kF32, 2);
  const Tensor x = memory.WithLayout(memory.layout().Narrow(2, 3, 4));  // rows dense, gaps between them
  const Tensor y = Empty({2, 3, 5}, DType::kF32), vector_y = Empty({5}, DType::kF32);
  ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .y = y.Write()});
  ExpectNear(y, Product(6, 5, 4, x.ToVector(), 4, 1, weight.ToVector(), 4, 1), DType::kF32);
  const Tensor vector_x = x.WithLayout(x.layout().Select(0, 1).Select(0, 2));
  ops::LinearForward({.x = vector_x.Read(), .weight = weight.Read(), .y = vector_y.Write()});
  for (int64_t i = 0; i < 5; ++i) EXPECT_NEAR(vector_y.At(i), y.At(1, 2, i), 1e-6);
}

TEST(Linear, TheWeightMayBeTransposedOrExpanded) {
  const Tensor x = Random({9, 4}, DType::kF32, 1), stored = Random({4, 5}, DType::kF32, 2);
  const Tensor weight = stored.WithLayout(stored.layout().Transpose(0, 1));
  const Tensor y = Empty({9, 5}, DType::kF32);
  ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .y = y.Write()});
  ExpectNear(y, Product(9, 5, 4, x.ToVector(), 4, 1, stored.ToVector(), 1, 5), DType::kF32);

  const Tensor same_rows = stored.WithLayout(Layout({5, 4}, {0, 1}, 0));
  ops::LinearForward({.x = x.Read(), .weight = same_rows.Read(), .y = y.Write()});
  ExpectNear(y, Product(9, 5, 4, x.ToVector(), 4, 1, same_rows.ToVector(), 4, 1), DType::kF32);

  const Tensor dy = Random({9, 5}, DType::kF32, 3), gradient = Empty({4, 5}, DType::kF32);
  const Tensor dweight = gradient.WithLayout(gradient.layout().Transpose(0, 1));
  ops::LinearBackward({.dy = dy.Read(), .x = x.Read(), .dweight = dweight.Write()});
  ExpectNear(dweight, Product(5, 4, 9, dy.ToVector(), 1, 5, x.ToVector(), 1, 4), DType::kF32);
}

TEST(Linear, TheBiasGradientKeepsItsAccuracyOverManyRows) {
  // Added one by one in f32, a million tenths end up about one percent off.
  const Tensor tenth = Full({1 << 20, 3}, DType::kF32, 0.1f);
  const Tensor dbias = Empty({3}, DType::kF32);
  ops::LinearBackward({.dy = tenth.Read(), .dbias = dbias.Write()});
  EXPECT_NEAR(dbias.At(1) / (0.1f * (1 << 20)), 1, 1e-4);
}

TEST(Linear, TheBitsDoNotDependOnTheNumberOfThreads) {
  const Tensor x = Random({300, 200}, DType::kF32, 1), weight = Random({700, 200}, DType::kF32, 2);
  const Tensor bias = Random({700}, DType::kF32, 3);
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Context context;
    context.thread_pool = &pool;
    const ContextGuard guard(context);
    const Tensor y = Empty({300, 700}, DType::kF32), pre = Empty({300, 700}, DType::kF32);
    const Tensor dx = Empty({300, 200}, DType::kF32), dweight = Empty({700, 200}, DType::kF32);
    const Tensor dbias = Empty({700}, DType::kF32);
    ops::LinearForward({.x = x.Read(),
                        .weight = weight.Read(),
                        .bias = bias.Read(),
                        .y = y.Write(),
                        .gelu = true,
                        .pre_activation = pre.Write()});
    ops::LinearBackward({.dy = pre.Read(),
                         .x = x.Read(),
                         .weight = weight.Read(),
                         .dx = dx.Write(),
                         .dweight = dweight.Write(),
                         .dbias = dbias.Write()});
    std::vector<double> all;
    for (const Tensor& part : {y, pre, dx, dweight, dbias}) {
      const std::vector<double> values = part.ToVector();
      all.insert(all.end(), values.begin(), values.end());
    }
    results.push_back(all);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(Linear, OnMetaNothingIsComputed) {
  const ContextGuard guard(Context{.device = kMeta});
  const Tensor x = Empty({1 << 20, 1 << 16}, DType::kBF16), weight = Empty({1 << 18, 1 << 16}, DType::kBF16);
  const Tensor y = Empty({1 << 20, 1 << 18}, DType::kBF16), dbias = Empty({1 << 18}, DType::kBF16);
  ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .y = y.Write()});
  ops::LinearBackward({.dy = y.Read(),
                       .x = x.Read(),
                       .weight = weight.Read(),
                       .dx = x.Write(),
                       .dweight = weight.Write(),
                       .dbias = dbias.Write()});
}

std::string ErrorOf(const ops::LinearForwardArgs& args) {
  try {
    ops::LinearForward(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string ErrorOf(const ops::LinearBackwardArgs& args) {
  try {
    ops::LinearBackward(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Linear, ErrorsSayWhatCameAndWhatIsLegal) {
  const Tensor x = Zeros({6, 4}, DType::kF32), weight = Zeros({5, 4}, DType::kF32), y = Zeros({6, 5}, DType::kF32);
  const Tensor wrong = Zeros({6, 3}, DType::kF32), half = Zeros({6, 4}, DType::kBF16), vector = Zeros({4}, DType::kF32);
  const Tensor transposed = weight.WithLayout(weight.layout().Transpose(0, 1));
  const auto forward = [&](const Tensor& with_x, const Tensor& with_weight, const Tensor& with_y) {
    return ErrorOf(ops::LinearForwardArgs{.x = with_x.Read(), .weight = with_weight.Read(), .y = with_y.Write()});
  };
  EXPECT_EQ(forward(x, weight, y), "no error");
  EXPECT_EQ(forward(wrong, weight, y), "linear: x (6, 3) has 3 features, weight wants 4");
  EXPECT_EQ(forward(x, weight, x), "linear: y (6, 4) has 4 features, weight gives 5");
  EXPECT_EQ(forward(x, vector, y), "linear: weight must have rank 2, got shape (4)");
  EXPECT_EQ(forward(half, weight, y), "linear: x is bf16, weight is f32; they must be equal");
  EXPECT_EQ(forward(x, weight, Zeros({7, 5}, DType::kF32)),
            "linear: x has shape (6, 4), y has (7, 5); all but the last dimension must be equal");
  EXPECT_EQ(forward(Zeros({}, DType::kF32), weight, y), "linear: x must have at least one dimension");
  const Tensor square = Zeros({4, 4}, DType::kF32);
  EXPECT_EQ(forward(transposed, Zeros({5, 5}, DType::kF32), Zeros({4, 5}, DType::kF32)),
            "linear: x must have a dense last dimension, got shape (4, 5) strides (1, 4) offset 0; use Contiguous()");
  const Tensor cube = Zeros({3, 2, 4}, DType::kF32);
  EXPECT_EQ(
      forward(cube.WithLayout(cube.layout().Transpose(0, 1)), weight, Zeros({2, 3, 5}, DType::kF32)),
      "linear: the leading dimensions of x must be readable as one, got shape (2, 3, 4) strides (4, 8, 1) offset 0; "
      "use Contiguous()");
  EXPECT_EQ(
      ErrorOf(ops::LinearForwardArgs{.x = x.Read(), .weight = weight.Read(), .bias = vector.Read(), .y = y.Write()}),
      "linear: bias has shape (4), expected (5)");
  EXPECT_EQ(ErrorOf(ops::LinearForwardArgs{
                .x = x.Read(), .weight = weight.Read(), .y = y.Write(), .pre_activation = y.Write()}),
            "linear: pre_activation is what gelu reads; without gelu it is y");
  EXPECT_EQ(ErrorOf(ops::LinearBackwardArgs{.dy = y.Read(), .x = x.Read(), .dweight = square.Write()}),
            "linear: dweight has shape (4, 4), expected (5, 4)");
  EXPECT_EQ(ErrorOf(ops::LinearBackwardArgs{.dy = y.Read(), .weight = square.Read(), .dx = x.Write()}),
            "linear: dy (6, 5) has 5 features, weight gives 4");
  EXPECT_EQ(ErrorOf(ops::LinearBackwardArgs{.dy = y.Read(), .dbias = vector.Write()}),
            "linear: dbias has shape (4), expected (5)");
}

}  // namespace
}  // namespace tessera
