// SPDX-License-Identifier: Apache-2.0
#include "io/permutation.h"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/error.h"

namespace tessera::io {
namespace {

TEST(Permutation, GivesEachItemExactlyOnce) {
  for (int64_t size : {0, 1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 1000, 4096, 4097, 10007}) {
    const Permutation order(size, RngKey(static_cast<uint64_t>(size)));
    std::vector<int> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_GE(order[i], 0);
      ASSERT_LT(order[i], size);
      ++seen[static_cast<size_t>(order[i])];
    }
    for (int count : seen) ASSERT_EQ(count, 1) << "size " << size;
  }
}

TEST(Permutation, HasNoTwoEqualItemsInAWindowOfAHugeRange) {
  const Permutation order((int64_t{1} << 62) - 57, RngKey(3));
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 2000; ++i) seen.insert(order[order.size() - 1 - i]);
  EXPECT_EQ(seen.size(), 2000u);
  EXPECT_LT(*seen.rbegin(), order.size());
}

TEST(Permutation, IsFixedByItsKeyAndChangesWithIt) {
  const Permutation a(1000, RngKey(1)), again(1000, RngKey(1)), b(1000, RngKey(2));
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a[i], again[i]);
    equal += a[i] == b[i];
  }
  EXPECT_LT(equal, 10);  // 1 expected
}

// Over many keys, every item is equally likely at every position.
TEST(Permutation, PrefersNoItem) {
  constexpr int64_t kSize = 6, kKeys = 6000;
  int64_t counts[kSize][kSize] = {};
  for (uint64_t key = 0; key < kKeys; ++key) {
    const Permutation order(kSize, RngKey(key));
    for (int64_t i = 0; i < kSize; ++i) ++counts[i][order[i]];
  }
  for (const auto& row : counts) {
    for (int64_t count : row) EXPECT_NEAR(count, kKeys / kSize, 5 * std::sqrt(kKeys / kSize));
  }
}

// Neighbours are torn apart: their distance is that of two random items, a third of the range.
TEST(Permutation, TearsNeighboursApart) {
  const Permutation order(20000, RngKey(5));
  double sum = 0;
  for (int64_t i = 1; i < order.size(); ++i) sum += std::abs(static_cast<double>(order[i] - order[i - 1]));
  EXPECT_NEAR(sum / 20000, 20000.0 / 3, 200);
}

TEST(Permutation, RefusesAPositionOutside) {
  const Permutation order(5, RngKey(0));
  EXPECT_THROW(order[5], Error);
  EXPECT_THROW(order[-1], Error);
}

}  // namespace
}  // namespace tessera::io
