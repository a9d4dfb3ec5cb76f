// SPDX-License-Identifier: Apache-2.0
#include "autograd/reduce.h"

#include <cmath>
#include <limits>

#include "autograd/elementwise.h"
#include "autograd/tape.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<OpCase> ReduceCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const std::string& name, const Shape& shape, auto f) {
    const auto run = [f](std::span<const Input> in) { return std::vector<Tensor>{f(in[0])}; };
    cases.push_back({.name = name, .inputs = {{shape}}, .run = run});
  };
  const auto sum = [](const Input& x) { return Sum(x); };
  const auto mean = [](const Input& x) { return Mean(x); };
  const std::pair<const char*, Shape> shapes[] = {
      {"Matrix", {3, 5}}, {"OneElement", {1, 1}}, {"Scalar", {}}, {"Odd", {2, 3, 211}}, {"Wide", {3, 1500}}};
  for (const auto& [name, shape] : shapes) {
    add(std::string("SumAll") + name, shape, sum);
    add(std::string("MeanAll") + name, shape, mean);
  }
  add("SumAllNoRows", {0, 4}, sum);
  add("SumAllNoColumns", {4, 0}, sum);
  for (int dim = 0; dim < 3; ++dim) {
    for (const bool keepdim : {false, true}) {
      const std::string suffix = std::to_string(dim) + (keepdim ? "Keep" : "");
      const auto sum_dim = [=](const Input& x) { return Sum(x, dim - 3, keepdim); };
      const auto mean_dim = [=](const Input& x) { return Mean(x, dim, keepdim); };
      const auto max_dim = [=](const Input& x) { return Max(x, dim - 3, keepdim); };
      add("Sum" + suffix, {2, 3, 4}, sum_dim);
      add("Mean" + suffix, {2, 3, 4}, mean_dim);
      add("Max" + suffix, {2, 3, 4}, max_dim);
      add("MaxWide" + suffix, {5, 9, 11}, max_dim);
      // Kept dims may be empty, and a sum over nothing is 0.
      add("SumNoRows" + suffix, {0, 2, 3}, sum_dim);
      add("SumNoColumns" + suffix, {2, 3, 0}, sum_dim);
      if (dim != 0) add("MeanNoRows" + suffix, {0, 2, 3}, mean_dim);
      if (dim != 2) add("MeanNoColumns" + suffix, {2, 3, 0}, mean_dim);
      if (dim != 0) add("MaxNoRows" + suffix, {0, 2, 3}, max_dim);
      if (dim != 2) add("MaxNoColumns" + suffix, {2, 3, 0}, max_dim);
    }
  }
  static constexpr int kOuter[] = {0, 2}, kNone[] = {-1};
  add("SumOuterDims", {4, 3, 5}, [](const Input& x) { return Sum(x, kOuter); });
  add("SumNoDims", {4, 3}, [](const Input& x) { return Sum(x, std::span(kNone).first(0), true); });
  add("MeanOuterDimsKeep", {4, 3, 5}, [](const Input& x) { return Mean(x, kOuter, true); });
  add("SumManyRows", {700, 9}, [](const Input& x) { return Sum(x, 0); });
  add("MaxLongRow", {2, 1100}, [](const Input& x) { return Max(x, 1); });
  add("MaxLongColumns", {600, 10}, [](const Input& x) { return Max(x, 0); });
  return cases;
}

TESSERA_OP_CASES(Reduce, ReduceCases());

TEST(Reduce, OverNothingIsZeroForASumAndAnErrorOtherwise) {
  const Tensor x = Empty({3, 0}, DType::kF32);
  EXPECT_EQ(Sum(x).Item(), 0);
  EXPECT_EQ(Sum(x, 1).ToVector(), std::vector<double>(3, 0.0));
  EXPECT_EQ(ErrorOf([&] { Mean(x); }), "mean: x has shape (3, 0) and out (1, 1): a mean over nothing");
  EXPECT_EQ(ErrorOf([&] { Mean(x, 1); }), "mean: x has shape (3, 0) and out (3, 1): a mean over nothing");
  EXPECT_EQ(ErrorOf([&] { Max(x, 1); }), "max: dim 1 of x has size 0 (shape (3, 0)): a maximum over nothing");
}

TEST(Reduce, RefusesDimsThatAreNotThereOrTwice) {
  const Tensor x = RandomTensor("x", {2, 3});
  constexpr int kTwice[] = {1, -1};
  EXPECT_EQ(ErrorOf([&] { Sum(x, 2); }), "sum: dim 2 is outside [-2, 2)");
  EXPECT_EQ(ErrorOf([&] { Max(x, -3); }), "max: dim -3 is outside [-2, 2)");
  EXPECT_EQ(ErrorOf([&] { Mean(x, kTwice); }), "mean: dim -1 is named twice");
}

TEST(Reduce, SumsIntegersToI64) {
  const Tensor bytes = Full({1000, 7}, DType::kU8, 255);
  EXPECT_EQ(Sum(bytes).dtype(), DType::kI64);
  EXPECT_EQ(Sum(bytes).Item(), 255 * 7000);
  const Tensor words = Tensor::From<int32_t>({-5, 2147483647, 2147483647, 1}, {2, 2});
  EXPECT_EQ(Sum(words, 0).ToVector(), (std::vector<double>{2147483642, 2147483648}));
  EXPECT_EQ(ErrorOf([&] { Mean(words); }), "mean: x is i32, expected f32, bf16, f16 or f64");
}

TEST(Max, TakesTheFirstOfEqualsAndNanAsTheLargest) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const bool by_columns : {false, true}) {
    Tape tape;
    const std::vector<double> values = {1, 3, 3, 0, -kInf, -kInf, -kInf, -kInf, 5, kNan, 9, kNan};
    const Tensor rows = tape.Watch(Tensor::From(values, {3, 4}));
    Tensor wide = rows;
    if (by_columns) {  // enough columns that they are scanned side by side
      std::vector<double> columns;
      for (int row = 0; row < 4; ++row) {
        for (int copy = 0; copy < 4; ++copy) {
          for (int column = 0; column < 3; ++column) columns.push_back(values[static_cast<size_t>(column * 4 + row)]);
        }
      }
      wide = tape.Watch(Tensor::From(columns, {4, 12}));
    }
    const Tensor y = Max(wide, by_columns ? 0 : 1);
    EXPECT_EQ(y.At(0), 3);
    EXPECT_EQ(y.At(1), -kInf);
    EXPECT_TRUE(std::isnan(y.At(2)));
    tape.Backward(y, Full(y.shape(), DType::kF64, 1));
    const Tensor grad = tape.Grad(wide);
    const auto at = [&](int64_t group, int64_t i) { return by_columns ? grad.At(i, group) : grad.At(group, i); };
    EXPECT_EQ((std::vector{at(0, 0), at(0, 1), at(0, 2), at(0, 3)}), (std::vector<double>{0, 1, 0, 0}));
    EXPECT_EQ((std::vector{at(1, 0), at(1, 1), at(1, 2), at(1, 3)}), (std::vector<double>{1, 0, 0, 0}));
    EXPECT_EQ((std::vector{at(2, 0), at(2, 1), at(2, 2), at(2, 3)}), (std::vector<double>{0, 1, 0, 0}));
  }
}

TEST(Reduce, GradientsOfSeveralUsesAdd) {
  Tape tape;
  const Tensor x = tape.Watch(Tensor::From<double>({1, 5, 2, 4}, {2, 2}));
  const Tensor loss = Add(Add(Sum(x), Mean(x)), Sum(Max(x, 1)));
  tape.Backward(loss);
  EXPECT_EQ(tape.Grad(x).ToVector(), (std::vector<double>{1.25, 2.25, 1.25, 2.25}));
}

}  // namespace
}  // namespace tessera::testing
