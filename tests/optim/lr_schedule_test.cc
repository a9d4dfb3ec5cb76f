// SPDX-License-Identifier: Apache-2.0
// Schedules, against values computed by hand from DeepSpeed's formulas.
#include "optim/lr_schedule.h"

#include "tests/optim/flat_test.h"

namespace tessera::optim {
namespace {

using Points = std::vector<std::pair<int64_t, double>>;

// The expected values have six digits.
void ExpectLr(const LrSchedule& schedule, const Points& points) {
  for (const auto& [index, lr] : points) {
    EXPECT_NEAR(schedule.AtIndex(index).lr, lr, 5e-6 * lr) << schedule.name() << " at index " << index;
    EXPECT_EQ(schedule.Lr(index + 2), schedule.AtIndex(index).lr);
  }
}

const Params kDecay = {{"warmup_num_steps", 100}, {"total_num_steps", 5000}, {"warmup_max_lr", 2e-5}};

Params With(Params params, const std::string& name, const ParamValue& value) {
  params.insert_or_assign(name, value);
  return params;
}

TEST(WarmupDecayLr, MeetsTheGoldenValuesOfTheLogWarmup) {
  ExpectLr(*LrSchedule::Create("WarmupDecayLR", kDecay), {{-1, 0},
                                                          {0, 0},
                                                          {1, 3.0103e-6},
                                                          {2, 4.77121e-6},
                                                          {9, 1e-5},
                                                          {49, 1.69897e-5},
                                                          {98, 1.99564e-5},
                                                          {99, 2e-5},
                                                          {100, 2e-5},
                                                          {101, 1.99959e-5},
                                                          {2550, 1e-5},
                                                          {4999, 4.08163e-9},
                                                          {5000, 0},
                                                          {5001, 0},
                                                          {100000, 0}});
}

TEST(WarmupDecayLr, MeetsTheGoldenValuesOfTheLinearWarmup) {
  ExpectLr(*LrSchedule::Create("WarmupDecayLR", With(kDecay, "warmup_type", "linear")),
           {{-1, 0}, {0, 0}, {1, 2e-7}, {50, 1e-5}, {99, 1.98e-5}, {100, 2e-5}});
}

TEST(WarmupLr, MeetsTheGoldenValues) {
  ExpectLr(*LrSchedule::Create("WarmupLR", {{"warmup_num_steps", 100}, {"warmup_max_lr", 3e-5}}),
           {{-1, 0}, {0, 0}, {1, 4.51545e-6}, {9, 1.5e-5}, {49, 2.54846e-5}, {99, 3e-5}, {100, 3e-5}, {1000000, 3e-5}});
}

TEST(WarmupLr, WarmsUpFromItsMinimum) {
  ExpectLr(*LrSchedule::Create(WarmupLrOptions{
               .warmup_min_lr = 1, .warmup_max_lr = 3, .warmup_num_steps = 4, .warmup_type = WarmupType::kLinear}),
           {{-1, 1}, {0, 1}, {1, 1.5}, {2, 2}, {3, 2.5}, {4, 3}, {5, 3}});
}

TEST(WarmupLr, WarmupOfNoneOrOneStepActsAsTwo) {
  for (const int steps : {0, 1, 2}) {
    const Params params = {{"warmup_num_steps", steps}, {"warmup_max_lr", 1e-3}};
    const auto log = LrSchedule::Create("WarmupLR", params);
    const auto linear = LrSchedule::Create("WarmupLR", With(params, "warmup_type", "linear"));
    const auto decay = LrSchedule::Create("WarmupDecayLR", With(params, "total_num_steps", 1));
    const auto cosine = LrSchedule::Create("WarmupCosineLR", {{"warmup_num_steps", steps}, {"total_num_steps", 1}});
    const double expected_log[] = {0, 0, 1e-3, 1e-3, 1e-3}, expected_linear[] = {0, 0, 5e-4, 1e-3, 1e-3};
    for (int64_t update = 1; update <= 10; ++update) {
      const size_t i = static_cast<size_t>(std::min<int64_t>(update, 5) - 1);
      EXPECT_NEAR(log->Lr(update), expected_log[i], 1e-18) << update;
      EXPECT_NEAR(linear->Lr(update), expected_linear[i], 1e-18) << update;
      EXPECT_TRUE(std::isfinite(decay->Lr(update)) && std::isfinite(cosine->Lr(update)));
    }
  }
}

TEST(WarmupLr, GoesUpToTheOptimizersLrWhenItHasNoMaximum) {
  EXPECT_EQ(LrSchedule::Create("WarmupLR", {{"warmup_num_steps", 10}}, {.lr = 0.25})->Lr(100), 0.25);
  EXPECT_EQ(LrSchedule::Create("WarmupDecayLR", {{"warmup_num_steps", 10}, {"total_num_steps", 99}}, {.lr = 0.25})
                ->AtIndex(10)
                .lr,
            1e-3);
}

TEST(WarmupCosineLr, MeetsTheGoldenValues) {
  const auto schedule =
      LrSchedule::Create("WarmupCosineLR", {{"warmup_num_steps", 100}, {"total_num_steps", 1000}}, {.lr = 1e-3});
  ExpectLr(*schedule, {{-1, 0},
                       {0, 0},
                       {9, 5e-4},
                       {99, 1e-3},
                       {100, 9.99997e-4},
                       {549, 5.0005e-4},
                       {999, 1e-7},
                       {1000, 1e-7},
                       {1900, 1e-7}});
}

TEST(WarmupCosineLr, StartsFromItsRatioAfterTheFirstUpdate) {
  const auto schedule = LrSchedule::Create(WarmupCosineLrOptions{.lr = 2,
                                                                 .total_num_steps = 8,
                                                                 .warmup_min_ratio = 0.5,
                                                                 .warmup_num_steps = 4,
                                                                 .warmup_type = WarmupType::kLinear});
  ExpectLr(*schedule, {{-1, 0}, {0, 1}, {1, 1.25}, {3, 1.75}});
}

TEST(LrRangeTest, RisesLinearlyOrInStairs) {
  const Params params = {{"lr_range_test_min_lr", 0.1}, {"lr_range_test_step_size", 4}, {"lr_range_test_step_rate", 2}};
  ExpectLr(*LrSchedule::Create("LRRangeTest", params), {{-1, 0.1}, {0, 0.15}, {3, 0.3}, {5, 0.4}, {7, 0.5}});
  ExpectLr(*LrSchedule::Create("LRRangeTest", With(params, "lr_range_test_staircase", true)),
           {{-1, 0.1}, {0, 0.1}, {2, 0.1}, {3, 0.3}, {6, 0.3}, {7, 0.5}});
  ExpectLr(*LrSchedule::Create("LRRangeTest"), {{-1, 1e-3}, {999, 1.5e-3}, {1999, 2e-3}});
}

Params Cycle() {
  return {{"cycle_min_lr", 1}, {"cycle_max_lr", 3}, {"cycle_first_step_size", 4}, {"cycle_second_step_size", 8}};
}

TEST(OneCycle, GoesUpAndDownOnceAndMovesTheMomentumTheOtherWay) {
  const auto schedule = LrSchedule::Create("OneCycle", Cycle());
  // t = index + 1: up in 4 steps, down in 8.
  ExpectLr(*schedule, {{-1, 1}, {0, 1.5}, {1, 2}, {3, 3}, {4, 2.75}, {7, 2}, {10, 1.25}, {11, 1}, {12, 1}, {500, 1}});
  const auto momentum = [&](int64_t index) { return *schedule->AtIndex(index).momentum; };
  EXPECT_DOUBLE_EQ(momentum(-1), 0.9);
  EXPECT_DOUBLE_EQ(momentum(1), 0.85);
  EXPECT_DOUBLE_EQ(momentum(3), 0.8);
  EXPECT_DOUBLE_EQ(momentum(7), 0.85);
  EXPECT_DOUBLE_EQ(momentum(11), 0.9);
  EXPECT_DOUBLE_EQ(momentum(500), 0.9);
  for (const int64_t index : {-1, 5, 500}) EXPECT_EQ(schedule->AtIndex(index).beta2, 0.99);
}

TEST(OneCycle, SecondHalfIsAsLongAsTheFirstByDefault) {
  const auto schedule =
      LrSchedule::Create("OneCycle", {{"cycle_min_lr", 0}, {"cycle_max_lr", 1}, {"cycle_first_step_size", 10}});
  ExpectLr(*schedule, {{9, 1}, {14, 0.5}, {18, 0.1}, {19, 0}});
  EXPECT_DOUBLE_EQ(LrSchedule::Create("OneCycle", {{"cycle_min_lr", 0}, {"cycle_max_lr", 1}})->AtIndex(1999).lr, 1);
}

TEST(OneCycle, DecaysAfterTheCycle) {
  Params params = With(With(Cycle(), "decay_step_size", 10), "decay_lr_rate", 0.5);
  const auto schedule = LrSchedule::Create("OneCycle", With(params, "decay_mom_rate", 0.1));
  // k = index - 12 + 1
  ExpectLr(*schedule, {{11, 1}, {12, 1 / 1.05}, {21, 1 / 1.5}, {31, 0.5}});
  EXPECT_DOUBLE_EQ(*schedule->AtIndex(21).momentum, 0.9 * 1.1);
}

TEST(OneCycle, ClimbsInStairs) {
  const auto schedule = LrSchedule::Create("OneCycle", With(Cycle(), "cycle_first_stair_count", 2));
  ExpectLr(*schedule, {{-1, 1}, {0, 1}, {1, 2}, {2, 2}, {3, 3}, {4, 2}, {7, 2}, {8, 1}, {11, 1}});
  const auto uneven =
      LrSchedule::Create("OneCycle", With(With(Cycle(), "cycle_first_stair_count", 2), "cycle_second_stair_count", 8));
  ExpectLr(*uneven, {{0, 1}, {1, 2}, {4, 2.75}, {5, 2.5}});
}

TEST(OneCycle, LeavesTheMomentumAloneWhenToldOrWithoutBetas) {
  const auto off = LrSchedule::Create("OneCycle", With(Cycle(), "cycle_momentum", false));
  EXPECT_FALSE(off->AtIndex(0).momentum.has_value() || off->AtIndex(0).beta2.has_value());
  EXPECT_TRUE(off->notices().empty());
  const auto sgd = LrSchedule::Create("OneCycle", Cycle(), {.has_betas = false});
  EXPECT_FALSE(sgd->AtIndex(0).momentum.has_value());
  ASSERT_EQ(sgd->notices().size(), 1u);
  EXPECT_NE(sgd->notices()[0].find("no betas"), std::string::npos);
}

TEST(LrSchedule, ConstantKeepsTheOptimizersLr) {
  const auto schedule = LrSchedule::Create("constant", {}, {.lr = 0.125});
  ExpectLr(*schedule, {{-1, 0.125}, {0, 0.125}, {1000000, 0.125}});
  EXPECT_TRUE(schedule->notices().empty());
}

TEST(LrSchedule, TellsWhatIsLegalAndPerhapsNotMeant) {
  const auto notices = [](const char* type, const Params& params, const ScheduledOptimizer& optimizer = {}) {
    const auto schedule = LrSchedule::Create(type, params, optimizer);
    std::string all;
    for (const std::string& notice : schedule->notices()) all += notice + "\n";
    return all;
  };
  EXPECT_EQ(notices("WarmupLR", {{"warmup_min_lr", 1e-6}}), "");
  EXPECT_EQ(notices("WarmupLR", {}), "WarmupLR: warmup_min_lr is 0, so updates 1 and 2 run with learning rate 0\n");
  EXPECT_EQ(notices("WarmupDecayLR", {{"warmup_min_lr", 1e-6}, {"total_num_steps", 10}}),
            "WarmupDecayLR: total_num_steps 10 is less than warmup_num_steps 1000, so the learning rate has no room to "
            "decay\n");
  EXPECT_NE(notices("WarmupCosineLR", {{"total_num_steps", 10}}).find("total_num_steps 10"), std::string::npos);
  const Params given = {{"warmup_max_lr", 3e-5}, {"warmup_min_lr", 1e-6}};
  EXPECT_EQ(notices("WarmupLR", given, {.lr = 2e-5}),
            "WarmupLR: warmup_max_lr 3e-05 wins over the optimizer's lr 2e-05\n");
  EXPECT_EQ(LrSchedule::Create("WarmupLR", given, {.lr = 2e-5})->AtIndex(5000).lr, 3e-5);
  EXPECT_EQ(notices("WarmupLR", given, {.lr = 3e-5}), "");
}

TEST(LrSchedule, TableHoldsTheValuesOfItsUpdates) {
  const auto schedule = LrSchedule::Create("WarmupDecayLR", kDecay);
  const Tensor table = schedule->Table(51, 200);
  EXPECT_EQ(table.shape(), (Shape{200, 3}));
  for (int64_t row = 0; row < 200; ++row) {
    EXPECT_EQ(table.At(row, 0), schedule->Lr(51 + row));
    EXPECT_TRUE(std::isnan(table.At(row, 1)) && std::isnan(table.At(row, 2)));
  }
  const Tensor cycle = LrSchedule::Create("OneCycle", Cycle())->Table(1, 3);
  EXPECT_EQ(cycle.At(2, 1), *LrSchedule::Create("OneCycle", Cycle())->AtUpdate(3).momentum);
  EXPECT_EQ(cycle.At(2, 2), 0.99);
}

TEST(LrSchedule, RefusesIllegalParametersInOneLine) {
  EXPECT_ERROR("expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest or constant",
               LrSchedule::Create("Cosine"));
  EXPECT_ERROR("WarmupDecayLR: parameter total_num_steps is required", LrSchedule::Create("WarmupDecayLR"));
  EXPECT_ERROR("WarmupCosineLR: parameter total_num_steps is required", LrSchedule::Create("WarmupCosineLR"));
  EXPECT_ERROR("OneCycle: parameter cycle_max_lr is required", LrSchedule::Create("OneCycle", {{"cycle_min_lr", 0.1}}));
  EXPECT_ERROR("total_num_steps is 0, expected an integer >= 1",
               LrSchedule::Create("WarmupDecayLR", {{"total_num_steps", 0}}));
  EXPECT_ERROR("warmup_num_steps is -1, expected an integer >= 0",
               LrSchedule::Create("WarmupLR", {{"warmup_num_steps", -1}}));
  EXPECT_ERROR("warmup_num_steps is 1.5, expected an integer",
               LrSchedule::Create("WarmupLR", {{"warmup_num_steps", 1.5}}));
  EXPECT_ERROR("warmup_num_steps is nan, expected an integer",
               LrSchedule::Create("WarmupLR", {{"warmup_num_steps", NAN}}));
  EXPECT_ERROR("warmup_max_lr is nan", LrSchedule::Create("WarmupLR", {{"warmup_max_lr", NAN}}));
  EXPECT_ERROR("warmup_min_lr is -1", LrSchedule::Create("WarmupLR", {{"warmup_min_lr", -1}}));
  EXPECT_ERROR("warmup_type is \"exp\", expected log or linear",
               LrSchedule::Create("WarmupLR", {{"warmup_type", "exp"}}));
  EXPECT_ERROR("WarmupLR: unknown parameter warmup_steps (5); known: ",
               LrSchedule::Create("WarmupLR", {{"warmup_steps", 5}}));
  EXPECT_ERROR("last_batch_iteration is 7, expected -1", LrSchedule::Create("WarmupLR", {{"last_batch_iteration", 7}}));
  EXPECT_ERROR("lr_range_test_step_size is 0", LrSchedule::Create("LRRangeTest", {{"lr_range_test_step_size", 0}}));
  EXPECT_ERROR("cycle_first_step_size is 0", LrSchedule::Create("OneCycle", With(Cycle(), "cycle_first_step_size", 0)));
  EXPECT_ERROR("cycle_max_mom is 1, expected a number in [0, 1)",
               LrSchedule::Create("OneCycle", With(Cycle(), "cycle_max_mom", 1)));
  EXPECT_ERROR("cos_min_ratio is 2, expected a number in [0, 1]",
               LrSchedule::Create("WarmupCosineLR", {{"total_num_steps", 5}, {"cos_min_ratio", 2}}));
  EXPECT_ERROR("constant: unknown parameter lr", LrSchedule::Create("constant", {{"lr", 0.1}}));
  const auto schedule = LrSchedule::Create("constant");
  EXPECT_ERROR("index is -2 (update 0)", schedule->Lr(0));
  EXPECT_ERROR("both must be >= 1", schedule->Table(1, 0));
}

}  // namespace
}  // namespace tessera::optim
