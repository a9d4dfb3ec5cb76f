// SPDX-License-Identifier: Apache-2.0
#include "autograd/rope.h"

#include <cmath>

#include "autograd/custom.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

// Every pair (i, i + D/2) turned by position * base^(-2i/D), back with sign -1.
Tensor PlainTurn(const Tensor& x, int64_t offset, int64_t rotated_heads, double sign) {
  const std::vector<double> values = x.ToVector();
  std::vector<double> y = values;
  const int64_t time = x.size(1), heads = x.size(2), width = x.size(3);
  for (int64_t row = 0; row < RowCount(x.shape()); ++row) {
    if (row % heads >= rotated_heads) continue;
    for (int64_t i = 0; i < width / 2; ++i) {
      const double frequency = std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
      const double angle = sign * static_cast<double>(offset + row / heads % time) * frequency;
      const size_t a = static_cast<size_t>(row * width + i), b = a + static_cast<size_t>(width / 2);
      y[a] = values[a] * std::cos(angle) - values[b] * std::sin(angle);
      y[b] = values[b] * std::cos(angle) + values[a] * std::sin(angle);
    }
  }
  return CopyTo(Tensor::From(y, x.shape()), x.dtype());
}

Tensor PlainRope(const Input& x, int64_t offset, int64_t rotated_heads) {
  return CustomFunction(
      "plain_rope", {x},
      [=](SavedValues&, std::span<const Tensor> in) { return PlainTurn(in[0], offset, rotated_heads, 1); },
      [=](const SavedValues&, const Tensor& dy) -> std::vector<Tensor> {
        return {PlainTurn(dy, offset, rotated_heads, -1)};
      });
}

std::vector<OpCase> RopeCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& x, int64_t offset, int64_t rotated_heads) {
    cases.push_back(
        {.name = name,
         .inputs = {{x}},
         .run =
             [=](std::span<const Input> in) {
               const RopeTable table({.head_dim = x[3], .max_positions = 4096});
               return std::vector<Tensor>{Rope(in[0], table, offset, rotated_heads)};
             },
         .composition =
             [=](std::span<const Input> in) { return std::vector<Tensor>{PlainRope(in[0], offset, rotated_heads)}; },
         .layouts = Layouts::kDenseRows});
  };
  add("Heads", {2, 5, 3, 8}, 0, 3);
  add("Offset", {2, 3, 2, 4}, 1000, 2);
  add("SomeHeadsOnly", {2, 3, 4, 6}, 7, 3);
  add("OnePair", {1, 1, 1, 2}, 1, 1);
  add("ManyRows", {2, 40, 3, 34}, 0, 3);
  add("EmptyBatch", {0, 3, 2, 4}, 0, 2);
  add("NoTime", {2, 0, 2, 4}, 0, 2);
  add("NoHeads", {2, 3, 0, 4}, 0, 0);
  return cases;
}

TESSERA_OP_CASES(Rope, RopeCases());

TEST(Rope, MatchesPyTorch) {
  ExpectMatchesGolden("rope", {"x"}, [](std::span<const Input> in) {
    const RopeTable table({.head_dim = 8, .max_positions = 5});
    return std::vector<Tensor>{Rope(in[0], table)};
  });
}

void ExpectRelative(double got, double expected) { EXPECT_NEAR(got / expected, 1.0, 1e-9) << expected; }

TEST(RopeTable, ScalesLowFrequenciesAsLlama3Does) {
  const RopeTable plain({.head_dim = 64, .max_positions = 16, .base = 500000});
  const RopeTable scaled(
      {.head_dim = 64,
       .max_positions = 16,
       .base = 500000,
       .llama3 =
           RopeScaling{.factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_positions = 8192}});
  const std::vector<double>&a = plain.inverse_frequencies(), &b = scaled.inverse_frequencies();
  ASSERT_EQ(b.size(), 32u);
  for (size_t i = 0; i <= 14; ++i) EXPECT_EQ(a[i], b[i]) << i;
  ExpectRelative(b[0], 1);
  ExpectRelative(b[8], 0.03760603093);
  ExpectRelative(b[14], 0.003211445995);
  ExpectRelative(b[15], 0.001290547928);
  ExpectRelative(b[16], 0.0004295567966);
  ExpectRelative(b[17], 9.70828780e-05);
  ExpectRelative(b[18], 1.946163818e-05);
  ExpectRelative(b[20], 8.570255490e-06);
  ExpectRelative(b[31], 9.418306725e-08);
  ExpectRelative(a[15], 0.002131119537);
  ExpectRelative(a[20], 2.742481757e-04);
}

TEST(RopeTable, GrowsToWhatIsAskedAndKeepsWhatItGave) {
  const RopeTable table({.head_dim = 4, .max_positions = 1000});
  const Tensor first = table.Rows(3, DType::kF64, kCpu);
  const std::vector<double> before = first.ToVector();
  const Tensor longer = table.Rows(900, DType::kF64, kCpu);
  EXPECT_EQ(first.ToVector(), before);
  EXPECT_EQ(longer.size(0), 1000);
  EXPECT_DOUBLE_EQ(longer.At(899, 1), std::cos(899 * 0.01));
  EXPECT_DOUBLE_EQ(longer.At(899, 3), std::sin(899 * 0.01));
}

TEST(Rope, RefusesAPositionBehindTheTable) {
  const RopeTable table({.head_dim = 4, .max_positions = 16});
  EXPECT_EQ(Rope(RandomTensor("x", {1, 16, 1, 4}), table).shape(), Shape({1, 16, 1, 4}));
  EXPECT_EQ(ErrorOf([&] {
              Rope(RandomTensor("x", {1, 17, 1, 4}), table);
            }),
            "rope: position 16 needs 17 positions, the table has 16");
}

TEST(Rope, RefusesHeadsOfAnotherSize) {
  const RopeTable table({.head_dim = 4, .max_positions = 16});
  EXPECT_EQ(ErrorOf([&] {
              Rope(RandomTensor("x", {1, 2, 1, 6}), table);
            }),
            "rope: heads of 6 features, the table is for 4");
  EXPECT_EQ(ErrorOf([] { RopeTable({.head_dim = 5, .max_positions = 1}); }),
            "rope: head_dim must be positive and even, got 5");
}

}  // namespace
}  // namespace tessera::testing
