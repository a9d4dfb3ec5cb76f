// SPDX-License-Identifier: Apache-2.0
#include "tensor/rng.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::testing {
namespace {

TEST(Philox, MatchesTheKnownAnswers) {
  // kat_vectors of the authors' Random123, philox4x32 with 10 rounds.
  EXPECT_EQ(Philox4x32(0, 0, 0), (PhiloxBlock{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(Philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (PhiloxBlock{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(Philox4x32(0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E),
            (PhiloxBlock{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(RngKey, ElementsShareBlocksOfFour) {
  const RngKey key = RngKey(5).With("weight");
  const PhiloxBlock block = Philox4x32(key.bits(), 7, 0);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(key.Bits(28 + i), block[i]);
}

// Saved runs and golden files depend on these: a change of keys or of the draw is a change of every model's weights.
TEST(RngKey, StaysTheSameForEver) {
  const RngKey key = RngKey(42).With("blocks.0.attn.c_attn.weight");
  EXPECT_EQ(key.bits(), 0x30BC5C1072BB9F37u);
  EXPECT_EQ(key.With(3).bits(), 0xD4369BE753A085F1u);
  EXPECT_EQ(key.Bits(0), 0x65AA5A33u);
  EXPECT_EQ(key.Uniform(1), 0.290166795f);
  EXPECT_DOUBLE_EQ(key.Normal(2), -0.30875257057393385);
}

TEST(RngKey, PartsAndTheirOrderMatter) {
  const RngKey key(1);
  const uint64_t bits[] = {key.bits(),
                           RngKey(2).bits(),
                           key.With("a").bits(),
                           key.With("b").bits(),
                           key.With("").bits(),
                           key.With(0).bits(),
                           key.With(1).bits(),
                           key.With(1).With(2).bits(),
                           key.With(2).With(1).bits(),
                           key.With("ab").bits(),
                           key.With("a").With("b").bits()};
  for (const uint64_t& a : bits) {
    for (const uint64_t& b : bits) EXPECT_TRUE(&a == &b || a != b);
  }
}

TEST(RngKey, UniformHasItsMomentsAndIsFlat) {
  const RngKey key = RngKey(9).With("uniform");
  constexpr int kCount = 1 << 20, kBins = 64;
  double sum = 0, squares = 0, products = 0;
  std::vector<int> bins(kBins);
  for (uint64_t i = 0; i < kCount; ++i) {
    const float u = key.Uniform(i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
    products += u * key.Uniform(i + 1);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  const double mean = sum / kCount, five_sigma = 5 / std::sqrt(12.0 * kCount);
  EXPECT_NEAR(mean, 0.5, five_sigma);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
  EXPECT_NEAR(products / kCount, 0.25, 2 * five_sigma);  // neighbours are not correlated
  double chi_squared = 0;
  for (int count : bins) chi_squared += std::pow(count - double{kCount} / kBins, 2) / (double{kCount} / kBins);
  EXPECT_NEAR(chi_squared, kBins - 1, 5 * std::sqrt(2.0 * (kBins - 1)));
}

TEST(RngKey, NormalHasItsMomentsAndDistribution) {
  const RngKey key = RngKey(9).With("normal");
  constexpr int kCount = 1 << 19;
  double moments[5] = {}, products = 0;
  int below[3] = {};
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = key.Normal(i);
    double power = 1;
    for (double& moment : moments) {
      moment += power / kCount;
      power *= x;
    }
    products += x * key.Normal(i ^ 1) / kCount;  // both halves of one Box-Muller draw
    below[0] += x < -1;
    below[1] += x < 0.5;
    below[2] += x < 2;
  }
  const double sigma = 1 / std::sqrt(double{kCount});
  EXPECT_NEAR(moments[1], 0, 5 * sigma);
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15.0) * sigma);
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(products, 0, 5 * std::sqrt(2.0) * sigma);
  const double points[] = {-1, 0.5, 2};
  for (int i = 0; i < 3; ++i) {
    const double expected = 0.5 * std::erfc(-points[i] / std::sqrt(2.0));
    EXPECT_NEAR(double(below[i]) / kCount, expected, 5 * std::sqrt(expected * (1 - expected)) * sigma);
  }
}

}  // namespace
}  // namespace tessera::testing
