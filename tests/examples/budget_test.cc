// SPDX-License-Identifier: Apache-2.0
#include "examples/common/budget.h"

#include <gtest/gtest.h>

namespace tessera::examples {
namespace {

TEST(Budget, TheLimitThatIsNearerDecides) {
  EXPECT_DOUBLE_EQ((Budget{.max_steps = 100}).Fraction(25, 1e9), 0.25);
  EXPECT_DOUBLE_EQ((Budget{.max_seconds = 120}).Fraction(1000000, 30), 0.25);
  EXPECT_DOUBLE_EQ((Budget{.max_steps = 100, .max_seconds = 120}).Fraction(25, 60), 0.5);
  EXPECT_DOUBLE_EQ((Budget{.max_steps = 100, .max_seconds = 120}).Fraction(75, 60), 0.75);
  EXPECT_DOUBLE_EQ((Budget{.max_steps = 100}).Fraction(101, 0), 1);
}

TEST(CosineSchedule, RisesThenFallsToTheFinalRatio) {
  const CosineSchedule schedule{.peak_lr = 2, .final_ratio = 0.1, .warmup_fraction = 0.1};
  EXPECT_GT(schedule.Lr(0, 0), 0);
  EXPECT_LT(schedule.Lr(0, 0), 0.03);
  EXPECT_NEAR(schedule.Lr(5, 0.05), 1, 0.02);
  EXPECT_NEAR(schedule.Lr(50, 0.5), 2 * 0.55, 1e-12);
  EXPECT_NEAR(schedule.Lr(100, 1), 0.2, 1e-12);
  for (int i = 10; i < 100; ++i) EXPECT_GT(schedule.Lr(i, i / 100.0), schedule.Lr(i + 1, (i + 1) / 100.0));
}

TEST(CosineSchedule, WarmupStepsTakeThePlaceOfTheFraction) {
  const CosineSchedule schedule{.peak_lr = 1, .warmup_fraction = 0.5, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.Lr(0, 0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.Lr(1, 0), 0.5);
  EXPECT_DOUBLE_EQ(schedule.Lr(3, 0), 1);
  EXPECT_DOUBLE_EQ(schedule.Lr(9, 0), 1);
}

}  // namespace
}  // namespace tessera::examples
