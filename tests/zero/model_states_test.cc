// SPDX-License-Identifier: Apache-2.0
// The formulas of memory against the ZeRO paper's first table and the sizes of known models.
#include "zero/model_states.h"

#include <gtest/gtest.h>

namespace tessera::zero {
namespace {

double Total(double parameters, int stage, int ranks, const BytesPerParameter& bytes = kMixedPrecision) {
  return ModelStateBytes(parameters, stage, ranks, bytes).total();
}

TEST(ModelStates, AreThePapersTable) {
  struct Row {
    double parameters;
    int ranks;
    double stages[3], tolerance;  // GB at stages 1 to 3
  };
  const Row rows[] = {
      {7.5e9, 1, {120, 120, 120}, 0.05},         {7.5e9, 4, {52.5, 41.3, 30}, 0.06},
      {7.5e9, 16, {35.6, 21.6, 7.5}, 0.06},      {7.5e9, 64, {31.4, 16.6, 1.88}, 0.06},
      {7.5e9, 256, {30.4, 15.4, 0.47}, 0.06},    {7.5e9, 1024, {30.1, 15.1, 0.12}, 0.06},
      {128e9, 4, {896, 704, 512}, 0.5},          {128e9, 16, {608, 368, 128}, 0.5},
      {128e9, 64, {536, 284, 32}, 0.5},          {128e9, 256, {518, 263, 8}, 0.5},
      {128e9, 1024, {513.5, 257.75, 2}, 0.05},   {1e12, 4, {7000, 5500, 4000}, 0.5},
      {1e12, 16, {4750, 2875, 1000}, 0.5},       {1e12, 64, {4187.5, 2218.75, 250}, 0.005},
      {1e12, 256, {4046.9, 2054.7, 62.5}, 0.05}, {1e12, 1024, {4011.7, 2013.7, 15.6}, 0.05},
  };
  for (const Row& row : rows) {
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_NEAR(Total(row.parameters, stage, row.ranks) / 1e9, row.stages[stage - 1], row.tolerance)
          << row.parameters << " parameters, " << row.ranks << " ranks, stage " << stage;
    }
  }
}

TEST(ModelStates, OfKnownModelsInGiB) {
  struct Row {
    double parameters, data_parallel;
    double stages[3][3];  // [N = 2, 4, 8][stage 1, 2, 3]
  };
  const Row rows[] = {
      {124439808, 1.85, {{1.16, 1.04, 0.93}, {0.81, 0.64, 0.46}, {0.64, 0.43, 0.23}}},
      {354823168, 5.29, {{3.30, 2.97, 2.64}, {2.31, 1.82, 1.32}, {1.82, 1.24, 0.66}}},
      {774030080, 11.53, {{7.21, 6.49, 5.77}, {5.05, 3.96, 2.88}, {3.96, 2.70, 1.44}}},
      {1557611200, 23.21, {{14.51, 13.06, 11.61}, {10.15, 7.98, 5.80}, {7.98, 5.44, 2.90}}},
      {1235814400, 18.42, {{11.51, 10.36, 9.21}, {8.06, 6.33, 4.60}, {6.33, 4.32, 2.30}}},
      {3212749824, 47.87, {{29.92, 26.93, 23.94}, {20.94, 16.46, 11.97}, {16.46, 11.22, 5.98}}},
      {8030261248, 119.66, {{74.79, 67.31, 59.83}, {52.35, 41.13, 29.92}, {41.13, 28.05, 14.96}}},
  };
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  for (const Row& row : rows) {
    EXPECT_NEAR(Total(row.parameters, 0, 4) / kGiB, row.data_parallel, 0.0051);
    for (int size = 0; size < 3; ++size) {
      for (int stage = 1; stage <= 3; ++stage) {
        EXPECT_NEAR(Total(row.parameters, stage, 2 << size) / kGiB, row.stages[size][stage - 1], 0.0051)
            << row.parameters << " parameters, " << (2 << size) << " ranks, stage " << stage;
      }
    }
  }
}

TEST(ModelStates, ByPrecision) {
  const double expected[3][4] = {{16e6, 7e6, 5.5e6, 4e6}, {18e6, 9e6, 6e6, 4.5e6}, {16e6, 10e6, 7e6, 4e6}};
  const BytesPerParameter bytes[] = {kMixedPrecision, kMixedPrecisionFp32Gradients, kSinglePrecision};
  for (int i = 0; i < 3; ++i) {
    for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(Total(1e6, stage, 4, bytes[i]), expected[i][stage]) << i << stage;
  }
}

}  // namespace
}  // namespace tessera::zero
