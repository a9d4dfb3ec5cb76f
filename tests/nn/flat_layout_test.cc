// SPDX-License-Identifier: Apache-2.0
#include "nn/flat_layout.h"

#include <gtest/gtest.h>

#include "tensor/rng.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

using nn::FlatLayout;
using nn::FlatOverlap;
using nn::FlatParam;
using nn::FlatParamSpec;
using nn::Segment;

using Units = std::vector<std::vector<FlatParamSpec>>;

Units RandomUnits(uint64_t seed) {
  const RngKey key = RngKey(seed).With("units");
  Units units(1 + key.Bits(0) % 5);
  uint64_t draw = 1;
  for (auto& unit : units) {
    const uint32_t count = key.Bits(draw++) % 6;
    for (uint32_t i = 0; i < count; ++i) {
      const int64_t numel = key.Bits(draw) % 3 == 0 ? key.Bits(draw + 1) % 3 : key.Bits(draw + 1) % 5000;
      unit.push_back({"p" + std::to_string(draw), numel, key.Bits(draw + 2) % 4 != 0});
      draw += 3;
    }
  }
  return units;
}

TEST(FlatLayout, SlicesOfAllRanksCoverEachParameterOnceAndInOrder) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Units units = RandomUnits(seed);
    for (int64_t world : {1, 2, 3, 4, 8}) {
      for (int64_t item : {2, 4, 8}) {
        const FlatLayout layout(units, world, item);
        int64_t param = 0;
        for (size_t u = 0; u < units.size(); ++u) {
          std::vector<int64_t> covered(units[u].size(), 0);
          for (Segment segment : {Segment::kTrainable, Segment::kFrozen}) {
            for (int64_t rank = 0; rank < world; ++rank) {
              for (const FlatOverlap& o : layout.Overlaps(static_cast<int64_t>(u), segment, rank)) {
                const size_t local = static_cast<size_t>(o.param - param);
                EXPECT_EQ(o.param_begin, covered[local]);  // ranks go up, so the pieces arrive in order
                covered[local] += o.numel;
                EXPECT_EQ(units[u][local].trainable, segment == Segment::kTrainable);
                EXPECT_LE(o.slice_begin + o.numel, layout.SliceNumel(static_cast<int64_t>(u), segment));
              }
            }
          }
          for (size_t i = 0; i < units[u].size(); ++i) EXPECT_EQ(covered[i], units[u][i].numel);
          param += static_cast<int64_t>(units[u].size());
        }
      }
    }
  }
}

TEST(FlatLayout, OffsetsAndSlicesAreAlignedAndDisjoint) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (int64_t world : {1, 3, 8}) {
      const FlatLayout layout(RandomUnits(seed), world, /*item_size=*/2);
      EXPECT_EQ(layout.alignment(), 64);
      for (const nn::FlatUnit& unit : layout.units()) {
        for (const nn::FlatSegment* segment : {&unit.trainable, &unit.frozen}) {
          EXPECT_EQ(segment->numel % (layout.alignment() * world), 0);
          int64_t end = 0;
          for (const FlatParam& param : segment->params) {
            EXPECT_EQ(param.offset % layout.alignment(), 0);
            EXPECT_GE(param.offset, end);
            end = param.offset + param.numel;
          }
          EXPECT_LE(end, segment->numel);
          EXPECT_LT(segment->numel - end, layout.alignment() * world);
        }
      }
    }
  }
}

TEST(FlatLayout, OffsetsOfParametersDoNotDependOnTheWorld) {
  const Units units = RandomUnits(7);
  const FlatLayout one(units, 1, 4), eight(units, 8, 4);
  for (size_t u = 0; u < units.size(); ++u) {
    const auto& a = one.units()[u].trainable.params;
    const auto& b = eight.units()[u].trainable.params;
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].offset, b[i].offset);
  }
}

TEST(FlatLayout, RefusesAnImpossibleWorld) {
  EXPECT_EQ(ErrorOf([] { FlatLayout({}, 0, 4); }), "flat_layout: world size 0 must be at least 1");
  const FlatLayout layout({{{"p", 10, true}}}, 2, 4);
  EXPECT_EQ(ErrorOf([&] { layout.Overlaps(0, Segment::kTrainable, 2); }), "flat_layout: rank 2 is outside [0, 2)");
}

}  // namespace
}  // namespace tessera::testing
