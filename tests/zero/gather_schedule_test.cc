// SPDX-License-Identifier: Apache-2.0
#include "zero/gather_schedule.h"

#include <gtest/gtest.h>

namespace tessera::zero {
namespace {

std::vector<int> AheadOf(const GatherSchedule& schedule) { return {schedule.Ahead().begin(), schedule.Ahead().end()}; }

void Cycle(GatherSchedule* schedule, const std::vector<int>& demands) {
  schedule->Begin();
  for (int unit : demands) schedule->Demand(unit);
  schedule->End();
}

TEST(GatherSchedule, TheFirstCyclePredictsNothing) {
  GatherSchedule schedule;
  schedule.Begin();
  schedule.Demand(0);
  EXPECT_TRUE(schedule.Ahead().empty());
  EXPECT_FALSE(schedule.ReuseDistance(0, std::vector<int64_t>{5}).has_value());
}

TEST(GatherSchedule, PredictsTheDemandsOfTheLastCycleThatAreStillToCome) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2, 1, 0});
  schedule.Begin();
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{0, 1, 2, 1, 0}));
  schedule.Demand(0);
  schedule.Demand(1);
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{2, 1, 0}));
  schedule.Demand(2);
  schedule.Demand(1);
  schedule.Demand(0);
  EXPECT_TRUE(schedule.Ahead().empty());
}

TEST(GatherSchedule, PassesOverUnitsThatThisCycleLeavesOut) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2, 3});
  schedule.Begin();
  schedule.Demand(0);
  schedule.Demand(2);  // 1 is left out
  EXPECT_EQ(AheadOf(schedule), std::vector<int>{3});
}

TEST(GatherSchedule, AUnitThatIsNewMovesNothing) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2});
  schedule.Begin();
  schedule.Demand(0);
  schedule.Demand(7);
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{1, 2}));
}

TEST(GatherSchedule, LearnsTheNewBranchForTheNextCycle) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2});
  Cycle(&schedule, {0, 2});
  schedule.Begin();
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{0, 2}));
}

TEST(GatherSchedule, ACycleThatBrokeOffLeavesTheOldPrediction) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2});
  schedule.Begin();
  schedule.Demand(2);
  schedule.Abandon();
  EXPECT_FALSE(schedule.active());
  schedule.End();  // of no cycle
  schedule.Begin();
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{0, 1, 2}));
}

TEST(GatherSchedule, OutsideACycleNothingIsPredictedAndNothingLearnt) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1});
  EXPECT_FALSE(schedule.active());
  EXPECT_TRUE(schedule.Ahead().empty());
  schedule.Demand(5);
  schedule.Begin();
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{0, 1}));
}

TEST(GatherSchedule, WhatAnEvaluationGathersInBetweenIsNoPartOfTheCycle) {
  GatherSchedule schedule;
  Cycle(&schedule, {0, 1, 2});
  schedule.Begin();
  schedule.Demand(0);
  schedule.SetPaused(true);
  EXPECT_TRUE(schedule.Ahead().empty());
  schedule.Demand(2);
  schedule.SetPaused(false);
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{1, 2}));
  schedule.Demand(1);
  schedule.Demand(2);
  schedule.End();
  schedule.Begin();
  EXPECT_EQ(AheadOf(schedule), (std::vector<int>{0, 1, 2}));
}

TEST(GatherSchedule, ReuseDistanceCountsEachUnitInBetweenOnce) {
  GatherSchedule schedule;
  const std::vector<int64_t> numel = {10, 20, 40, 80};
  Cycle(&schedule, {0, 1, 2, 1, 2, 0});
  schedule.Begin();
  schedule.Demand(0);
  EXPECT_EQ(schedule.ReuseDistance(0, numel), 60);
  EXPECT_EQ(schedule.ReuseDistance(1, numel), 0);  // the very next
  EXPECT_EQ(schedule.ReuseDistance(2, numel), 20);
  EXPECT_EQ(schedule.ReuseDistance(3, numel), std::nullopt);  // not predicted
}

}  // namespace
}  // namespace tessera::zero
