// SPDX-License-Identifier: Apache-2.0
#include "autograd/embedding.h"

#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/fill.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<OpCase> EmbeddingCases() {
  const auto run = [](std::span<const Input> in) { return std::vector<Tensor>{Embedding(in[0], *in[1].tensor())}; };
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, int64_t rows, int64_t width, const Shape& ids) {
    cases.push_back({.name = name, .inputs = {{{rows, width}}, OpInput::Index(ids, rows)}, .run = run});
  };
  add("Batch", 7, 5, {2, 3});
  add("OneElement", 1, 1, {1});
  add("ScalarId", 3, 4, {});
  add("RepeatedIds", 3, 6, {40});
  add("UntouchedRows", 90, 3, {2, 2});
  add("WideRows", 4, 1100, {3});
  add("ManyRows", 3000, 9, {5});
  add("NoIds", 4, 3, {0});
  add("NoLastIds", 4, 3, {2, 0});
  add("NoColumns", 4, 0, {3});
  cases.push_back({.name = "NoRows", .inputs = {{{0, 3}}, OpInput::Index({2, 0}, 1)}, .run = run});
  return cases;
}

TESSERA_OP_CASES(Embedding, EmbeddingCases());

TEST(Embedding, NamesTheIdThatIsOutOfRangeAndGoesOn) {
  const Tensor weight = RandomTensor("w", {50257, 2}, -1, 1, DType::kF32);
  EXPECT_EQ(ErrorOf([&] {
              Embedding(weight, Tensor::From<int64_t>({1, 50257}, {1, 2}));
            }),
            "embedding: ids at (0, 1) is 50257, legal is 0..50256");
  EXPECT_EQ(ErrorOf([&] {
              Embedding(weight, Tensor::From<int32_t>({1, 2, -1, 3}, {2, 2}));
            }),
            "embedding: ids at (1, 0) is -1, legal is 0..50256");
  EXPECT_EQ(ErrorOf([&] {
              Embedding(Empty({0, 2}, DType::kF32), Tensor::From<int32_t>({0}, {1}));
            }),
            "embedding: ids at (0) is 0, legal is nothing: there are no rows");
  EXPECT_EQ(Embedding(weight, Tensor::From<int64_t>({50256}, {1})).At(0, 1), weight.At(50256, 1));
}

TEST(Embedding, TakesI32IdsAndStridedOnes) {
  const Tensor weight = RandomTensor("w", {9, 4});
  const Tensor wide = Tensor::From<int32_t>({0, 1, 2, 3, 4, 8}, {2, 3});
  const Tensor ids = wide.WithLayout(wide.layout().Transpose(0, 1));  // (3, 2)
  const Tensor y = Embedding(weight, ids);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) EXPECT_EQ(y.At(i, j, 2), weight.At(static_cast<int64_t>(wide.At(j, i)), 2));
  }
}

TEST(Embedding, RefusesIdsThatAreNoIndexes) {
  const Tensor weight = RandomTensor("w", {3, 4});
  EXPECT_EQ(ErrorOf([&] { Embedding(weight, RandomTensor("ids", {2})); }),
            "embedding: ids is f64, expected i32 or i64");
  EXPECT_EQ(ErrorOf([&] { Embedding(RandomTensor("w", {3}), Tensor::From<int64_t>({0}, {1})); }),
            "embedding: weight must have rank 2, got shape (3)");
}

TEST(Embedding, BackwardAsksForNoData) {
  TestParameter weight("wte", RandomTensor("w", {5, 3}, -1, 1, DType::kF32), DType::kF32);
  Tape tape;
  tape.Backward(Sum(Embedding(ParamRef(&weight), Tensor::From<int64_t>({4, 4}, {2}))));
  EXPECT_EQ(weight.data_count, 1);
  EXPECT_EQ(weight.grad().At(4, 0), 2);
  EXPECT_EQ(weight.grad().At(0, 0), 0);  // the target was full of NaN
}

TEST(Embedding, AddsManyGradientsOfOneRowWithoutLosingAny) {
  // One id 4096 times, gradient 1, target bf16: adding one by one in bf16 would stop at 256.
  TestParameter weight("wte", RandomTensor("w", {3, 2}, -1, 1, DType::kBF16), DType::kBF16);
  Tape tape;
  const Tensor ids = Full({4096}, DType::kI64, 1);
  const Tensor y = Embedding(ParamRef(&weight), ids);
  tape.Backward(y, Full(y.shape(), DType::kBF16, 1));
  EXPECT_EQ(weight.grad().ToVector(), (std::vector<double>{0, 0, 4096, 4096, 0, 0}));
}

TEST(Embedding, GathersRowsOfAnyDType) {
  for (const DType dtype :
       {DType::kU8, DType::kI32, DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const Tensor table = CopyTo(Tensor::From<int64_t>({1, 2, 3, 4, 5, 6}, {3, 2}), dtype);
    const Tensor rows = Embedding(table, Tensor::From<int64_t>({2, 0}, {2}));
    EXPECT_EQ(rows.dtype(), dtype);
    EXPECT_EQ(rows.ToVector(), (std::vector<double>{5, 6, 1, 2}));
  }
}

}  // namespace
}  // namespace tessera::testing
