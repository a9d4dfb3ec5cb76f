// SPDX-License-Identifier: Apache-2.0
// Sums in the raw: long ones, cut into segments, in every direction; what they lose and what they do not.
#include "tensor/ops/reduce.h"

#include <cmath>
#include <numeric>

#include "tensor/context.h"
#include "tensor/ops/binary.h"
#include "tensor/ops/copy.h"
#include "tensor/thread_pool.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

Tensor SumTo(const Tensor& x, const Shape& shape, bool mean = false) {
  const bool floating = IsFloating(x.dtype());
  const Tensor out = EmptyOn(x.device(), shape, floating ? x.dtype() : DType::kI64);
  const int64_t workspace_numel = ops::PlanSum("sum", x.shape(), shape).workspace_numel();
  const Tensor workspace = Full({workspace_numel}, floating ? DType::kF64 : DType::kI64, -7);
  ops::ReduceSum({.x = x.Read(), .out = out.Write(), .mean = mean, .workspace = workspace.Write()});
  return out;
}

// The same, one element after the other, with Neumaier's correction in long double.
std::vector<double> PlainSumTo(const Tensor& x, const Shape& shape) {
  Shape kept;
  for (int dim = 0; dim < x.rank() - shape.rank(); ++dim) kept.push_back(1);
  for (int64_t size : shape) kept.push_back(size);
  std::vector<long double> sums(static_cast<size_t>(shape.numel()), 0.0L);
  std::vector<int64_t> index(static_cast<size_t>(x.rank()), 0);
  for (double value : x.ToVector()) {
    size_t place = 0;
    for (int dim = 0; dim < x.rank(); ++dim) {
      place = place * static_cast<size_t>(kept[dim]) +
              (kept[dim] == 1 ? 0 : static_cast<size_t>(index[static_cast<size_t>(dim)]));
    }
    sums[place] += value;
    for (int dim = x.rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<size_t>(dim)] < x.size(dim)) break;
      index[static_cast<size_t>(dim)] = 0;
    }
  }
  return {sums.begin(), sums.end()};
}

struct SumCase {
  const char* name;
  Shape x, out;
};

class LongSums : public ::testing::TestWithParam<SumCase> {};

TEST_P(LongSums, MatchPlainOnesInAnyLayoutOnAnyNumberOfThreads) {
  const SumCase& c = GetParam();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor dense = RandomTensor(c.name, c.x, -1, 1, dtype);
    const double scale = static_cast<double>(c.x.numel()) / static_cast<double>(c.out.numel());
    const double output_ulp = dtype == DType::kBF16 ? 0x1p-8 : (dtype == DType::kF32 ? 0x1p-23 : 0x1p-51);
    const double sum_error = (dtype == DType::kF64 ? 0x1p-53 : 0x1p-24) * 8 * std::sqrt(scale);
    Shape swapped = c.x;
    std::swap(swapped[0], swapped[c.x.rank() - 1]);
    const Tensor block = Empty(swapped, dtype), transposed = block.WithLayout(block.layout().Transpose(0, -1));
    ops::Copy({.x = dense.Read(), .out = transposed.Write()});
    const std::vector<double> expected = PlainSumTo(dense, c.out);
    for (const Tensor& x : {dense, transposed}) {
      Tensor first;
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        Context context = CurrentContext();
        context.thread_pool = &pool;
        const ContextGuard guard(context);
        const Tensor sum = SumTo(x, c.out);
        const std::vector<double> got = sum.ToVector();
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], expected[i], sum_error + output_ulp * std::abs(expected[i])) << Name(dtype) << " " << i;
        }
        if (threads == 1) first = sum;
        EXPECT_TRUE(BitEqual(sum, first)) << Name(dtype);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Reduce, LongSums,
    ::testing::Values(SumCase{"All", {300, 1001}, {}}, SumCase{"Columns", {20000, 9}, {9}},
                      SumCase{"FewColumns", {100000, 3}, {3}}, SumCase{"WideColumns", {600, 1100}, {1100}},
                      SumCase{"Rows", {5, 70001}, {5, 1}}, SumCase{"ManyRows", {5000, 33}, {5000, 1}},
                      SumCase{"Middle", {3, 5000, 17}, {3, 1, 17}}, SumCase{"Outer", {40, 31, 130}, {31, 1}},
                      SumCase{"Inner", {7, 30, 1100}, {7, 1, 1}}, SumCase{"EveryOther", {30, 7, 40, 11}, {7, 1, 11}}),
    [](const auto& info) { return info.param.name; });

TEST(Reduce, CutsDependOnShapesAlone) {
  const ops::SumPlan all = ops::PlanSum("sum", {1000, 1000}, {});
  EXPECT_EQ(all.segments, 16);
  EXPECT_EQ(all.segment_terms, 65536);
  EXPECT_EQ(all.workspace_numel(), 16);
  EXPECT_EQ(ops::PlanSum("sum", {8192, 768}, {768}).segments, 16);
  EXPECT_EQ(ops::PlanSum("sum", {1000000, 5}, {1000000, 1}).workspace_numel(), 0);
  EXPECT_EQ(ops::PlanSum("sum", {0, 5}, {1, 5}).terms, 0);
  EXPECT_EQ(ops::PlanSum("sum", {0, 5}, {0, 1}).outputs, 0);
}

TEST(Reduce, OnesOfBf16AreCountedExactly) {
  // Kept in bf16 the sum would stop at 256, in f32 at 2^24.
  const Tensor ones = Full({(1 << 24) + 4096}, DType::kBF16, 1);
  const Tensor out = Empty({1}, DType::kF64), workspace = Empty({1000}, DType::kF64);
  ops::ReduceSum({.x = ones.Read(), .out = out.Write(), .workspace = workspace.Write()});
  EXPECT_EQ(out.Item(), (1 << 24) + 4096);
}

TEST(Reduce, IntegerSumsWrapAndMatchInAnyLayout) {
  std::vector<int64_t> values(2000 * 7);
  std::iota(values.begin(), values.end(), -3000);
  const Tensor x = Tensor::From(values, {2000, 7});
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{2000, 1}}) {
    EXPECT_EQ(SumTo(x, shape).ToVector(), PlainSumTo(x, shape));
    EXPECT_EQ(SumTo(CopyTo(x, DType::kI32), shape).ToVector(), PlainSumTo(x, shape));
  }
  const Tensor large = Tensor::From<int64_t>({INT64_MAX, 1, 5}, {3});
  EXPECT_EQ(SumTo(large, {}).Item(), static_cast<double>(INT64_MIN + 5));
}

TEST(Reduce, RefusesAnOutputThatDoesNotFit) {
  const Tensor x = RandomTensor("x", {300, 300, 3});
  const auto sum = [&](const Shape& shape, int64_t workspace) {
    return ErrorOf([&] {
      const Tensor out = Empty(shape, DType::kF64), work = Empty({workspace}, DType::kF64);
      ops::ReduceSum({.x = x.Read(), .out = out.Write(), .workspace = work.Write()});
    });
  };
  EXPECT_EQ(sum({2, 3}, 0), "sum: out has shape (2, 3), which does not broadcast to (300, 300, 3)");
  EXPECT_EQ(sum({1, 300, 300, 3}, 0), "sum: out has shape (1, 300, 300, 3), which does not broadcast to (300, 300, 3)");
  EXPECT_EQ(sum({3}, 4), "sum: workspace has 4 elements, this sum needs 15");
}

TEST(Binary, LongBroadcastGradientsAreCutAndAddedInOrder) {
  const Tensor dy = RandomTensor("dy", {20000, 9}, -1, 1, DType::kF32),
               a = RandomTensor("a", {20000, 9}, -1, 1, DType::kF32);
  const Tensor workspace = Empty({ops::BinaryWorkspaceNumel({20000, 9}, {9})}, DType::kF64);
  ASSERT_GT(workspace.numel(), 0);
  const Tensor db = Full({9}, DType::kF32, 1);
  ops::BinaryBackward({.op = ops::BinaryOp::kMul,
                       .dy = dy.Read(),
                       .a = a.Read(),
                       .db = db.Write(),
                       .accumulate_db = true,
                       .workspace = workspace.Write()});
  const Tensor product = Empty({20000, 9}, DType::kF64);
  ops::BinaryForward({.op = ops::BinaryOp::kMul,
                      .a = CopyTo(dy, DType::kF64).Read(),
                      .b = CopyTo(a, DType::kF64).Read(),
                      .y = product.Write()});
  const std::vector<double> expected = PlainSumTo(product, {9});
  for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(db.At(i), 1 + expected[static_cast<size_t>(i)], 2e-5);
}

}  // namespace
}  // namespace tessera::testing
