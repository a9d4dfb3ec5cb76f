// SPDX-License-Identifier: Apache-2.0
// The batch triple: every completion, the product rule, and errors with what would have been right.
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tests/zero/load_config.h"

namespace tessera::zero {
namespace {

std::string BatchError(Config config, int64_t world_size) {
  return std::string(config.ResolveBatch(world_size).message());
}

struct BatchCase {
  int64_t ranks, total, micro, steps;  // 0: absent
  int64_t expected_total, expected_micro, expected_steps;
};

Config WithBatch(int64_t total, int64_t micro, int64_t steps) {
  Config config;
  config.train_batch_size = total;
  config.train_micro_batch_size_per_gpu = micro;
  config.gradient_accumulation_steps = steps;
  return config;
}

TEST(Batch, IsCompletedFromAnyPartThatTellsIt) {
  for (const BatchCase& c : std::vector<BatchCase>{
           {4, 32, 4, 0, 32, 4, 2},  // total and micro
           {4, 32, 0, 0, 32, 8, 1},  // total alone
           {4, 0, 3, 0, 12, 3, 1},   // micro alone
           {2, 0, 3, 5, 30, 3, 5},   // micro and steps
           {2, 64, 0, 8, 64, 4, 8},  // total and steps
           {2, 64, 4, 8, 64, 4, 8},  // all three
           {1, 1, 0, 0, 1, 1, 1},
       }) {
    Config config = WithBatch(c.total, c.micro, c.steps);
    for (int call = 0; call < 2; ++call) {  // a second call changes nothing
      const absl::Status status = config.ResolveBatch(c.ranks);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(config.train_batch_size, c.expected_total);
      EXPECT_EQ(config.train_micro_batch_size_per_gpu, c.expected_micro);
      EXPECT_EQ(config.gradient_accumulation_steps, c.expected_steps);
    }
  }
}

TEST(Batch, ObeysTheProductRuleOrIsRefused) {
  int accepted = 0, refused = 0;
  for (int64_t ranks = 1; ranks <= 4; ++ranks) {
    for (int64_t total = 0; total <= 12; ++total) {
      for (int64_t micro = 0; micro <= 6; ++micro) {
        for (int64_t steps = 0; steps <= 6; ++steps) {
          Config config = WithBatch(total, micro, steps);
          if (!config.ResolveBatch(ranks).ok()) {
            EXPECT_EQ(Digest(config), Digest(WithBatch(total, micro, steps))) << "a refused one is left as it was";
            ++refused;
            continue;
          }
          ++accepted;
          EXPECT_EQ(config.train_batch_size,
                    config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps * ranks);
          EXPECT_GT(config.train_batch_size, 0);
          EXPECT_TRUE(total == 0 || config.train_batch_size == total);
          EXPECT_TRUE(micro == 0 || config.train_micro_batch_size_per_gpu == micro);
          EXPECT_TRUE(steps == 0 || config.gradient_accumulation_steps == steps);
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

TEST(Batch, RecordsWhatItDerived) {
  const auto origins = [](const char* text, int64_t ranks) {
    Config config = Load(text);
    EXPECT_TRUE(config.ResolveBatch(ranks).ok());
    return config.origins;
  };
  using Origins = std::map<std::string, std::string>;
  EXPECT_EQ(origins("{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 8}", 2),
            (Origins{{"train_micro_batch_size_per_gpu", "ds.json:1"},
                     {"gradient_accumulation_steps", "ds.json:1"},
                     {"train_batch_size", "derived: 4 x 8 x 2 ranks"}}));
  EXPECT_EQ(origins("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", 4),
            (Origins{{"train_micro_batch_size_per_gpu", "ds.json:1"},
                     {"gradient_accumulation_steps", "derived: 32 / 4 / 4 ranks"},
                     {"train_batch_size", "ds.json:1"}}));
  EXPECT_EQ(origins("{\"train_batch_size\": 32}", 1),
            (Origins{{"train_micro_batch_size_per_gpu", "derived: 32 / 1 / 1 rank"},
                     {"gradient_accumulation_steps", "derived: 1 by default"},
                     {"train_batch_size", "ds.json:1"}}));
}

TEST(Batch, ThatDoesNotFitTheRanksIsRefusedWithFactorsAndProducts) {
  const Config config =
      Load("{\n\"train_batch_size\":64,\n\"train_micro_batch_size_per_gpu\":4,\n\"gradient_accumulation_steps\":8}");
  EXPECT_EQ(BatchError(config, 2), "");
  EXPECT_EQ(
      BatchError(config, 1),
      "ds.json:2: train_batch_size 64 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 8 x 1 "
      "rank = 32; nearest valid: train_batch_size 32, or gradient_accumulation_steps 16, or "
      "train_micro_batch_size_per_gpu 8");
  EXPECT_EQ(
      BatchError(config, 3),
      "ds.json:2: train_batch_size 64 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 8 x 3 "
      "ranks = 96; nearest valid: train_batch_size 96");
}

TEST(Batch, ThatDoesNotDivideIsRefusedWithItsNeighbours) {
  EXPECT_EQ(BatchError(WithBatch(10, 4, 0), 1),
            "config: train_batch_size 10 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 2 "
            "(derived) x 1 rank = 8; nearest valid: train_batch_size 8 or 12");
  EXPECT_EQ(BatchError(WithBatch(10, 0, 3), 2),
            "config: train_batch_size 10 is not train_micro_batch_size_per_gpu 1 (derived) x "
            "gradient_accumulation_steps 3 x 2 ranks = 6; nearest valid: train_batch_size 6 or 12");
  EXPECT_EQ(
      BatchError(WithBatch(2, 0, 0), 4),
      "config: train_batch_size 2 is not train_micro_batch_size_per_gpu 0 (derived) x gradient_accumulation_steps "
      "1 (derived) x 4 ranks = 0; nearest valid: train_batch_size 4");
  const int64_t huge = INT64_MAX;
  EXPECT_EQ(BatchError(WithBatch(huge, 2, 0), 1),
            Str("config: train_batch_size ", huge,
                " is not train_micro_batch_size_per_gpu 2 x "
                "gradient_accumulation_steps ",
                huge / 2, " (derived) x 1 rank = ", huge - 1, "; nearest valid: train_batch_size ", huge - 1));
}

TEST(Batch, ThatIsTooLargeIsRefused) {
  EXPECT_EQ(BatchError(WithBatch(0, INT64_MAX, 2), 2),
            "config: train_micro_batch_size_per_gpu 9223372036854775807 x gradient_accumulation_steps 2 x 2 ranks, "
            "their product train_batch_size exceeds 2^63 - 1");
  EXPECT_EQ(BatchError(WithBatch(8, INT64_MAX, 2), 2),
            "config: train_micro_batch_size_per_gpu 9223372036854775807 x gradient_accumulation_steps 2 x 2 ranks, "
            "their product train_batch_size exceeds 2^63 - 1");
}

TEST(Batch, WithTooLittleGivenIsRefusedByAllThreeNames) {
  EXPECT_EQ(
      BatchError(WithBatch(0, 0, 0), 2),
      "config: none of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps is given; "
      "set one of the first two (train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps "
      "x 2 ranks)");
  EXPECT_EQ(
      BatchError(Load("{\n\"gradient_accumulation_steps\": 8}"), 2),
      "ds.json:2: gradient_accumulation_steps 8 alone does not tell the batch; set train_micro_batch_size_per_gpu "
      "or train_batch_size too (train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x "
      "2 ranks)");
}

TEST(Batch, WithAnImpossibleNumberIsRefused) {
  EXPECT_EQ(BatchError(WithBatch(8, 0, 0), 0), "config: the number of ranks is 0, expected at least 1");
  EXPECT_EQ(BatchError(WithBatch(8, -2, 0), 1),
            "config: train_micro_batch_size_per_gpu is -2, expected a whole number >= 1, or 0 for absent");
  EXPECT_EQ(ErrorOf("{\"train_batch_size\": 0}"),
            "ds.json:1: train_batch_size: got 0, expected a whole number from 1 to 2^63 - 1");
}

}  // namespace
}  // namespace tessera::zero
