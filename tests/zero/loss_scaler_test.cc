// SPDX-License-Identifier: Apache-2.0
// The loss scale against written traces: DeepSpeed's rule, and what must end a run.
#include "zero/loss_scaler.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/error.h"

namespace tessera::zero {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Config Fp16(const Fp16Config& options) {
  Config config;
  config.fp16 = options;
  config.fp16.enabled = true;
  return config;
}

// The scale and the tokens of hysteresis after each step of a pattern: 'O' an overflow, 'C' a clean step.
std::string Trace(LossScaler& scaler, std::string_view pattern, bool as_exponent) {
  std::string out;
  for (const char step : pattern) {
    if (step == ' ') continue;
    const double before = scaler.scale();
    const ScaleUpdate update = scaler.Update(step == 'O');
    EXPECT_EQ(update.scale, before) << "the update tells the scale that backward used";
    EXPECT_EQ(update.next_scale, scaler.scale());
    EXPECT_EQ(update.is_skipped(), step == 'O');
    out += Str(out.empty() ? "" : " ", as_exponent ? std::log2(scaler.scale()) : scaler.scale(), "/",
               scaler.state().hysteresis);
    if (update.ends_run()) out += " end";
  }
  return out;
}

std::string Scales(const Fp16Config& options, std::string_view pattern) {
  LossScaler scaler(Fp16(options));
  std::string out;
  for (const char step : pattern) {
    if (step == ' ') continue;
    const ScaleUpdate update = scaler.Update(step == 'O');
    out += Str(out.empty() ? "" : " ", scaler.scale(), update.ends_run() ? " end" : "");
  }
  return out;
}

TEST(DynamicLossScale, FollowsDeepSpeedsTraceOfOverflowsAndGrowth) {
  LossScaler scaler(Fp16({.loss_scale_window = 4}));
  EXPECT_EQ(Trace(scaler, "O O C C C C C C O C O C C C C C C C C C C", true),
            "16/1 15/1 15/1 15/1 15/1 15/1 16/2 16/2 16/1 16/1 15/1 15/1 15/1 15/1 15/1 16/2 16/2 16/2 16/2 17/2 17/2");
  EXPECT_EQ(scaler.state().skipped, 4);
  EXPECT_EQ(scaler.state().iteration, 21);
}

TEST(DynamicLossScale, FirstGrowsAfterOneStepMoreThanAWindow) {
  LossScaler scaler(Fp16({.loss_scale_window = 4}));
  EXPECT_EQ(Trace(scaler, "CCCCCCCCC", true), "16/2 16/2 16/2 16/2 17/2 17/2 17/2 17/2 18/2");
  LossScaler usual(Fp16({}));
  for (int step = 1; step <= 1000; ++step) EXPECT_EQ(usual.Update(false).event, ScaleEvent::kKept);
  EXPECT_EQ(usual.Update(false).event, ScaleEvent::kGrew);
  EXPECT_EQ(usual.scale(), 131072);
}

TEST(DynamicLossScale, RefillsHysteresisAtCleanStepsInConsecutiveMode) {
  LossScaler scaler(Fp16({.loss_scale_window = 4, .consecutive_hysteresis = true}));
  EXPECT_EQ(Trace(scaler, "O C O C O O C C C C C C", true),
            "16/1 16/2 16/1 16/2 16/1 15/1 15/2 15/2 15/2 15/2 16/2 16/2");
}

TEST(DynamicLossScale, SpendsHysteresisOnceUntilItGrows) {
  const Fp16Config options{.initial_scale_power = 4, .loss_scale_window = 4};
  EXPECT_EQ(Scales(options, "OOOCCCCOO"), "16 8 4 4 4 4 4 2 1");
  EXPECT_EQ(Scales(options, "OCOCOCO"), "16 16 8 8 4 4 2");
  Fp16Config consecutive = options;
  consecutive.consecutive_hysteresis = true;
  EXPECT_EQ(Scales(consecutive, "OCOCOCO"), "16 16 16 16 16 16 16");
}

TEST(DynamicLossScale, EndsTheRunAtItsMinimum) {
  EXPECT_EQ(Scales({.initial_scale_power = 2, .hysteresis = 1}, "OOO"), "2 1 1 end");
  // At the minimum with a token left: the token goes first.
  EXPECT_EQ(Scales({.initial_scale_power = 0, .hysteresis = 2}, "OO"), "1 1 end");
  // A minimum that halving does not meet is still the floor.
  EXPECT_EQ(Scales({.initial_scale_power = 3, .hysteresis = 1, .min_loss_scale = 3}, "OOO"), "4 3 3 end");
  EXPECT_EQ(Scales({.initial_scale_power = 0, .hysteresis = 1, .min_loss_scale = 0.25}, "OOO"), "0.5 0.25 0.25 end");
}

TEST(DynamicLossScale, GrowsWithoutACap) {
  LossScaler scaler(Fp16({.initial_scale_power = 30, .loss_scale_window = 1}));
  for (int step = 0; step < 21; ++step) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 50));
}

TEST(DynamicLossScale, ContinuesFromItsStateAsIfNothingHadHappened) {
  const std::string_view pattern = "O O C C C C C C O C O C C C C C C C C C C";
  LossScaler whole(Fp16({.loss_scale_window = 4})), first(Fp16({.loss_scale_window = 4}));
  const std::string expected = Trace(whole, pattern, true);
  std::string got = Trace(first, pattern.substr(0, 18), true);
  LossScaler second(Fp16({.initial_scale_power = 3, .loss_scale_window = 4}));
  second.Restore(first.state());
  got += " " + Trace(second, pattern.substr(18), true);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(second.state().skipped, whole.state().skipped);
}

TEST(FixedLossScale, StaysWhateverHappens) {
  LossScaler scaler(Fp16({.loss_scale = 128}));
  EXPECT_FALSE(scaler.is_dynamic());
  for (int step = 1; step <= 5000; ++step) {
    EXPECT_EQ(scaler.scale(), 128);
    const ScaleUpdate update = scaler.Update(step == 3);
    EXPECT_EQ(update.event, step == 3 ? ScaleEvent::kSkipped : ScaleEvent::kKept);
    EXPECT_FALSE(update.ends_run());
  }
  EXPECT_EQ(scaler.state().skipped, 1);
}

TEST(FixedLossScale, IsOneWithoutFp16) {
  Config bf16;
  bf16.bf16.enabled = true;
  bf16.fp16.loss_scale = 64;  // of no meaning: fp16 is not enabled
  EXPECT_EQ(LossScaler(bf16).scale(), 1);
  EXPECT_EQ(LossScaler(Config()).scale(), 1);
  EXPECT_FALSE(LossScaler(Config()).is_dynamic());
}

TEST(FixedLossScale, EndsTheRunAfterAsManySkipsInARowAsAllowed) {
  Config config;
  config.tessera.max_skipped_steps = 3;
  LossScaler scaler(config);
  const auto event = [&scaler](bool overflow) { return scaler.Update(overflow).event; };
  EXPECT_EQ(event(true), ScaleEvent::kSkipped);
  EXPECT_EQ(event(true), ScaleEvent::kSkipped);
  EXPECT_EQ(event(false), ScaleEvent::kKept);  // the row is broken
  EXPECT_EQ(event(true), ScaleEvent::kSkipped);
  EXPECT_EQ(event(true), ScaleEvent::kSkipped);
  EXPECT_EQ(event(true), ScaleEvent::kTooManySkipped);
  EXPECT_EQ(scaler.state().skipped, 5);

  LossScaler usual{Config()};
  for (int step = 1; step < 20; ++step) EXPECT_FALSE(usual.Update(true).ends_run()) << step;
  EXPECT_TRUE(usual.Update(true).ends_run());
}

TEST(FixedLossScale, IsTheConfigsAfterARestore) {
  LossScaler scaler(Fp16({.loss_scale = 128}));
  scaler.Restore({.scale = 4096, .hysteresis = 5, .last_overflow = 7, .iteration = 9, .skipped = 2});
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.state().hysteresis, 2);
  EXPECT_EQ(scaler.state().skipped, 2);
}

TEST(ScaleUpdate, TellsScaleHysteresisAndSkipsOfEachEvent) {
  LossScaler scaler(Fp16({.initial_scale_power = 1, .loss_scale_window = 1}));
  EXPECT_EQ(scaler.Update(false).ToString(), "loss scale 2 (hysteresis 2, skipped 0)");
  EXPECT_EQ(scaler.Update(false).ToString(), "loss scale grows from 2 to 4 (hysteresis 2, skipped 0)");
  EXPECT_EQ(scaler.Update(true).ToString(),
            "step skipped, gradients are not finite; loss scale stays 4 (hysteresis 1, skipped 1)");
  EXPECT_EQ(scaler.Update(true).ToString(),
            "step skipped, gradients are not finite; loss scale shrinks from 4 to 2 (hysteresis 1, skipped 2)");
  scaler.Update(true);
  EXPECT_EQ(scaler.Update(true).ToString(),
            "step skipped, gradients are not finite; loss scale 1 is the minimum and cannot shrink, the run ends "
            "(hysteresis 1, skipped 4)");

  LossScaler fixed(Fp16({.loss_scale = 128}));
  EXPECT_EQ(fixed.Update(false).ToString(), "loss scale 128 (skipped 0, 0 in a row)");
  EXPECT_EQ(fixed.Update(true).ToString(),
            "step skipped, gradients are not finite; loss scale is fixed at 128 (skipped 1, 1 in a row)");
}

TEST(ScaleUpdate, MentionsNoLossScaleWhereThereIsNone) {
  Config config;
  config.bf16.enabled = true;
  config.tessera.max_skipped_steps = 2;
  LossScaler scaler(config);
  EXPECT_EQ(scaler.Update(false).ToString(), "step applied (skipped 0, 0 in a row)");
  EXPECT_EQ(scaler.Update(true).ToString(), "step skipped, gradients are not finite (skipped 1, 1 in a row)");
  const std::string last = scaler.Update(true).ToString();
  EXPECT_EQ(last, "step skipped, gradients are not finite; too many in a row, the run ends (skipped 2, 2 in a row)");
  EXPECT_THAT(last, Not(HasSubstr("scale")));
}

TEST(LossScaler, RefusesOptionsThatHaveNoMeaning) {
  EXPECT_THROW(LossScaler(Fp16({.loss_scale_window = 0})), Error);
  EXPECT_THROW(LossScaler(Fp16({.hysteresis = 0})), Error);
  EXPECT_THROW(LossScaler(Fp16({.min_loss_scale = 0})), Error);
}

}  // namespace
}  // namespace tessera::zero
