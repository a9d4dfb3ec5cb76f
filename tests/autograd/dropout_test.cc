// SPDX-License-Identifier: Apache-2.0
#include "autograd/dropout.h"

#include <cmath>

#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "autograd/views.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<OpCase> DropoutCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const std::string& name, const Shape& shape, double p) {
    const auto run = [p](std::span<const Input> in) { return std::vector<Tensor>{Dropout(in[0], p, RngKey(7))}; };
    cases.push_back({.name = name, .inputs = {{shape}}, .run = run});
  };
  add("Matrix", {5, 7}, 0.3);
  add("OneElement", {1}, 0.5);
  add("Scalar", {}, 0.5);
  add("OddBlocks", {3, 2, 211}, 0.1);
  add("ManyChunks", {3, 6001}, 0.5);
  add("NoRows", {0, 4}, 0.5);
  add("NoColumns", {4, 0}, 0.5);
  add("KeepsAll", {3, 4}, 0);
  add("DropsAll", {3, 4}, 1);
  return cases;
}

TESSERA_OP_CASES(Dropout, DropoutCases());

TEST(Dropout, DropsWhatTheKeySaysInRowMajorOrder) {
  const RngKey key = RngKey(3).With("drop");
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor x = Full({37, 41}, DType::kF32, 1);
    const std::vector<double> y = Dropout(x, p, key).ToVector();
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], key.Uniform(i) < p ? 0.0f : static_cast<float>(1 / (1 - p))) << i;
    }
    // The mask belongs to the elements, not to where they lie.
    const Tensor transposed = Transpose(Full({41, 37}, DType::kF32, 1), 0, 1);
    EXPECT_EQ(Dropout(transposed, p, key).ToVector(), y);
  }
}

TEST(Dropout, KeepsTheExpectedShareAndMean) {
  constexpr int64_t kCount = 1 << 20;
  for (const double p : {0.1, 0.25, 0.5}) {
    const Tensor y = Dropout(Full({kCount}, DType::kF32, 1), p, RngKey(11));
    int64_t kept = 0;
    for (double value : y.ToVector()) kept += value != 0;
    const double sigma = std::sqrt(p * (1 - p) / kCount);
    EXPECT_NEAR(static_cast<double>(kept) / kCount, 1 - p, 5 * sigma);
    EXPECT_NEAR(Mean(y).Item(), 1, 5 * sigma / (1 - p));
  }
}

TEST(Dropout, IsTheIdentityAtZeroAndZeroAtOne) {
  const Tensor x = Tensor::From<float>({1, std::nanf(""), INFINITY, -2}, {4});
  EXPECT_EQ(Dropout(x, 0, RngKey(1)).storage().get(), x.storage().get());
  EXPECT_EQ(Dropout(x, 1, RngKey(1)).ToVector(), std::vector<double>(4, 0.0));
}

TEST(Dropout, RefusesAProbabilityOutsideItsRange) {
  const Tensor x = RandomTensor("x", {2});
  EXPECT_EQ(ErrorOf([&] { Dropout(x, 1.5, RngKey(1)); }), "dropout: p is 1.5, expected a number in [0, 1]");
  EXPECT_EQ(ErrorOf([&] { Dropout(x, std::nan(""), RngKey(1)); }), "dropout: p is nan, expected a number in [0, 1]");
}

TEST(Dropout, SavesNothing) {
  Tape tape;
  const Tensor x = tape.Watch(Full({1000}, DType::kF32, 1));
  const int64_t before = CpuAllocator().stats().bytes;
  const Tensor y = Dropout(x, 0.5, RngKey(5));
  EXPECT_EQ(CpuAllocator().stats().bytes - before, y.bytes());
  const Tensor values = CopyTo(y, y.dtype());
  tape.Backward(y, Full({1000}, DType::kF32, 1));
  EXPECT_TRUE(BitEqual(tape.Grad(x), values));  // the same mask and the same factor
}

}  // namespace
}  // namespace tessera::testing
