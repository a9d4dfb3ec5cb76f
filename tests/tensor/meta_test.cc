// SPDX-License-Identifier: Apache-2.0
// Shapes past 2^31 and 2^32 elements on the meta device, where they cost nothing: checks, plans and views count in 64 bits.
// tests/tensor/huge_test.cc does some of them for real.
#include <gtest/gtest.h>

#include "autograd/dropout.h"
#include "autograd/elementwise.h"
#include "autograd/embedding.h"
#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "autograd/views.h"
#include "tensor/ops/fill.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;

class HugeMeta : public ::testing::TestWithParam<int64_t> {};

TEST_P(HugeMeta, RunsForwardAndBackwardOfEveryKind) {
  const int64_t n = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Tape tape;
    const Tensor leaf = EmptyOn(kMeta, {n}, dtype);
    ops::Fill({.out = leaf.Write(), .value = 1});
    const Tensor x = tape.Watch(leaf);
    const Tensor y = Dropout(Gelu(Add(Mul(x, x), Scale(x, 2))), 0.5, RngKey(1));
    EXPECT_EQ(y.numel(), n);
    EXPECT_EQ(Narrow(y, 0, n - 1, 1).layout().offset(), n - 1);
    const Tensor rows = Expand(Reshape(Narrow(y, 0, 0, n / 2 * 2), {2, n / 2}), {3, 2, n / 2});
    EXPECT_EQ(rows.numel(), n / 2 * 6);
    const Tensor column = Reshape(y, {n, 1}), twice = Concat({y, y}, 0);
    EXPECT_EQ(twice.numel(), 2 * n);
    const Tensor loss = Add(Add(Sum(rows), Mean(column)), Add(Sum(Max(column, 0)), Mean(twice)));
    tape.Backward(loss);
    EXPECT_EQ(tape.Grad(x).numel(), n);
  }
  EXPECT_EQ(Sum(EmptyOn(kMeta, {n}, DType::kU8)).dtype(), DType::kI64);
}

TEST_P(HugeMeta, GathersAndScattersRows) {
  const int64_t rows = GetParam() / 32768 + 1;
  Tape tape;
  const Tensor weight = tape.Watch(EmptyOn(kMeta, {rows, 32768}, DType::kBF16));
  const Tensor y = Embedding(weight, EmptyOn(kMeta, {rows, 2}, DType::kI64));
  EXPECT_EQ(y.numel(), rows * 2 * 32768);
  tape.Backward(Sum(y));
  EXPECT_EQ(tape.Grad(weight).shape(), (Shape{rows, 32768}));
}

INSTANTIATE_TEST_SUITE_P(Sizes, HugeMeta, ::testing::Values(kTwo31 - 2, kTwo31, kTwo31 + 1, kTwo32 + 1));

}  // namespace
}  // namespace tessera::testing
