// SPDX-License-Identifier: Apache-2.0
// Real runs around and past 2^31 and 2^32 elements: offsets of 64 bits in every kernel. Needs 13 GiB of free memory and some
// minutes, so it is in the suite `slow`: meson test --suite slow. The exhaustive sweeps of cheap functions are here too.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <fstream>
#include <string>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include "tensor/ops/binary.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/reduce.h"
#include "tensor/ops/scale.h"
#include "tensor/ops/unary.h"
#include "tensor/tensor.h"
#include "tensor/thread_pool.h"

namespace tessera::testing {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;

int64_t AvailableGiB() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return std::stoll(line.substr(13)) >> 20;
  }
  return 1 << 20;
}

class Huge : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if (AvailableGiB() < 13) GTEST_SKIP() << "needs 13 GiB of memory, " << AvailableGiB() << " are available";
  }
  void TearDown() override { CpuAllocator().ReleaseCached(); }

  // Places where 32-bit arithmetic goes wrong first.
  static std::vector<int64_t> Places(int64_t n) {
    std::vector<int64_t> places;
    for (const int64_t place :
         {int64_t{0}, int64_t{12345}, kTwo31 - 1, kTwo31, kTwo31 + 1, kTwo32 - 1, kTwo32, n - 1}) {
      if (place < n && std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
    return places;
  }
};

double SumOf(const Tensor& x) {
  const bool floating = IsFloating(x.dtype());
  const Tensor out = Empty({1}, floating ? DType::kF64 : DType::kI64);
  const Tensor workspace =
      Empty({ops::PlanSum("sum", x.shape(), {1}).workspace_numel()}, floating ? DType::kF64 : DType::kI64);
  ops::ReduceSum({.x = x.Read(), .out = out.Write(), .workspace = workspace.Write()});
  return out.Item();
}

TEST_P(Huge, FillCopyAndSumOfBytes) {
  const int64_t n = GetParam();
  const Tensor x = Empty({n}, DType::kU8), y = Zeros({n}, DType::kU8);
  ops::Fill({.out = x.Write(), .value = 3});
  EXPECT_EQ(SumOf(x), 3.0 * static_cast<double>(n));
  for (const int64_t place : Places(n)) {
    ops::Fill({.out = x.WithLayout(x.layout().Narrow(0, place, 1)).Write(), .value = 7});
  }
  ops::Copy({.x = x.Read(), .out = y.Write()});
  for (const int64_t place : Places(n)) EXPECT_EQ(y.At(place), 7) << place;
  const double expected = 3.0 * static_cast<double>(n) + 4.0 * static_cast<double>(Places(n).size());
  EXPECT_EQ(SumOf(y), expected);
  // By columns: two rows of about 2^31 each, read through a transposed view.
  const Tensor rows = y.WithLayout(Layout({n / 2, 2}, {1, n / 2}, 0));
  EXPECT_EQ(SumOf(rows), expected - (n % 2 == 0 ? 0 : 7));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Huge, ::testing::Values(kTwo31 - 2, kTwo31, kTwo31 + 1, kTwo32 + 1));

class HugeFloats : public Huge {};

TEST_P(HugeFloats, ArithmeticInPlace) {
  const int64_t n = GetParam();
  const Tensor x = Full({n}, DType::kBF16, 1);
  EXPECT_EQ(SumOf(x), static_cast<double>(n));  // 2^31 ones, exactly
  const Tensor two = Full({1}, DType::kBF16, 2);
  ops::BinaryForward({.op = ops::BinaryOp::kAdd, .a = x.Read(), .b = two.Read(), .y = x.Write()});
  ops::BinaryForward({.op = ops::BinaryOp::kMul, .a = x.Read(), .b = x.Read(), .y = x.Write()});
  ops::UnaryForward({.op = ops::UnaryOp::kNeg, .x = x.Read(), .y = x.Write()});
  ops::Scale({.x = x.Read(), .out = x.Write(), .factor = 0.5});
  for (const int64_t place : Places(n)) EXPECT_EQ(x.At(place), -4.5) << place;
  EXPECT_EQ(SumOf(x), -4.5 * static_cast<double>(n));

  // The gradient of a broadcast operand: n terms of 1 * x.
  const Tensor ones = Full({1}, DType::kBF16, 1), grad = Empty({1}, DType::kF64);
  const ConstView dy = ones.WithLayout(ones.layout().Expand({n})).Read();
  const Tensor workspace = Empty({ops::BinaryWorkspaceNumel({n}, {1})}, DType::kF64);
  ops::BinaryBackward(
      {.op = ops::BinaryOp::kMul, .dy = dy, .a = x.Read(), .db = grad.Write(), .workspace = workspace.Write()});
  EXPECT_EQ(grad.Item(), -4.5 * static_cast<double>(n));
}

TEST_P(HugeFloats, MaximumAtTheEnd) {
  const int64_t n = GetParam();
  const Tensor x = Full({n}, DType::kBF16, -1), out = Empty({1}, DType::kBF16), index = Empty({1}, DType::kI64);
  ops::Fill({.out = x.WithLayout(x.layout().Narrow(0, n - 1, 1)).Write(), .value = 2});
  ops::ReduceMax({.x = x.Read(), .out = out.Write(), .index = index.Write(), .dim = 0});
  EXPECT_EQ(out.Item(), 2);
  EXPECT_EQ(index.Item(), static_cast<double>(n - 1));
  ops::ReduceMaxBackward({.dy = out.Read(), .index = index.Read(), .dx = x.Write(), .dim = 0});
  EXPECT_EQ(x.At(n - 1), 2);
  EXPECT_EQ(SumOf(x), 2);
}

TEST_P(HugeFloats, DropoutCountsElementsIn64Bits) {
  const int64_t n = GetParam();
  const RngKey key(3);
  const Tensor x = Full({n}, DType::kBF16, 1);
  ops::Dropout({.x = x.Read(), .y = x.Write(), .p = 0.5, .key = key});
  for (const int64_t place : Places(n)) {
    EXPECT_EQ(x.At(place), key.Uniform(static_cast<uint64_t>(place)) < 0.5 ? 0 : 2) << place;
  }
  EXPECT_NEAR(SumOf(x) / static_cast<double>(n), 1, 5 / std::sqrt(static_cast<double>(n)));
}

INSTANTIATE_TEST_SUITE_P(Sizes, HugeFloats, ::testing::Values(kTwo31 - 2, kTwo31 + 1));

using HugeRows = Huge;

TEST_P(HugeRows, EmbeddingReachesTheLastRow) {
  constexpr int64_t kWidth = 32768;
  const int64_t rows = GetParam();
  const Tensor ids = Tensor::From<int64_t>({rows - 1, 0, rows - 2, rows - 1}, {4});
  {
    const Tensor table = Full({rows, kWidth}, DType::kBF16, 1), y = Empty({4, kWidth}, DType::kBF16);
    ops::Fill({.out = table.WithLayout(table.layout().Narrow(0, rows - 1, 1)).Write(), .value = 5});
    ops::EmbeddingForward({.weight = table.Read(), .ids = ids.Read(), .y = y.Write()});
    EXPECT_EQ(SumOf(y), 12.0 * kWidth);
    EXPECT_EQ(y.At(0, kWidth - 1), 5);
    const Tensor workspace = Empty({ops::EmbeddingWorkspaceNumel(rows, 4)}, DType::kI64);
    ops::EmbeddingBackward(
        {.dy = y.Read(), .ids = ids.Read(), .dweight = table.Write(), .workspace = workspace.Write()});
    EXPECT_EQ(table.At(rows - 1, kWidth - 1), 10);
    EXPECT_EQ(table.At(rows - 3, 5), 0);
    EXPECT_EQ(SumOf(table), 12.0 * kWidth);
  }
  CpuAllocator().ReleaseCached();
  // An output past 2^31 elements.
  const Tensor bytes = Full({3, kWidth}, DType::kU8, 1), many = Full({rows}, DType::kI64, 2);
  const Tensor y = Zeros({rows, kWidth}, DType::kU8);
  ops::EmbeddingForward({.weight = bytes.Read(), .ids = many.Read(), .y = y.Write()});
  EXPECT_EQ(SumOf(y), static_cast<double>(rows * kWidth));
}

INSTANTIATE_TEST_SUITE_P(Rows, HugeRows, ::testing::Values(65537));

TEST(Exhaustive, EveryFloatRoundsTo16BitsAsEigenDoesIt) {
  std::atomic<int64_t> wrong{0};
  ParallelFor(kTwo32, 1 << 20, [&](int64_t begin, int64_t end) {
    int64_t found = 0;
    for (int64_t bits = begin; bits < end; ++bits) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      const BFloat16 bf16 = ToBFloat16(x);
      const Float16 f16 = ToFloat16(x);
      if (x != x) {
        found += !(ToFloat(bf16) != ToFloat(bf16) && ToFloat(f16) != ToFloat(f16));
      } else {
        found += bf16.bits != Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(x));
        found += f16.bits != Eigen::numext::bit_cast<uint16_t>(Eigen::half(x));
      }
    }
    wrong += found;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tessera::testing
