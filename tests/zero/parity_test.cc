// SPDX-License-Identifier: Apache-2.0
// The same training in every way an engine can do it: against an independent implementation, and bit by bit between
// stages. `Pairwise` covers every pair of settings in each test run; `Sweep` is all of them, in the slow suite.
#include "tests/zero/parity.h"

#include <cmath>

#include "nn/resident_manager.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"
#include "tests/support/tiny_model.h"
#include "zero/engine.h"

namespace tessera::testing {
namespace {

std::vector<ParitySetup> AllSetups() {
  std::vector<ParitySetup> all;
  for (const char* model : {"gpt", "llama"}) {
    for (int stage = 0; stage < 4; ++stage) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (bool recompute : {false, true}) {
          for (int accumulation : {1, 3}) {
            all.push_back({.model = model,
                           .stage = stage,
                           .ranks = ranks,
                           .recompute = recompute,
                           .accumulation = accumulation,
                           .overlap = (stage + ranks) % 2 == 0});
          }
        }
      }
    }
  }
  return all;
}

// Every stage with every number of ranks; the other settings so that each pair of values occurs.
std::vector<ParitySetup> PairwiseSetups() {
  std::vector<ParitySetup> chosen;
  for (const ParitySetup& setup : AllSetups()) {
    const int s = setup.stage, n = setup.ranks;
    if (setup.model == ((s / 2 + n / 2) % 2 == 0 ? "gpt" : "llama") && setup.recompute == ((s + n) % 2 == 1) &&
        setup.accumulation == ((s + n / 2) % 2 == 0 ? 1 : 3)) {
      chosen.push_back(setup);
    }
  }
  return chosen;
}

std::string NameOf(const ::testing::TestParamInfo<ParitySetup>& info) { return info.param.Name(); }

class Parity : public ::testing::TestWithParam<ParitySetup> {};
INSTANTIATE_TEST_SUITE_P(Pairwise, Parity, ::testing::ValuesIn(PairwiseSetups()), NameOf);
INSTANTIATE_TEST_SUITE_P(Sweep, Parity, ::testing::ValuesIn(AllSetups()), NameOf);

TEST_P(Parity, DoubleEqualsTheIndependentReference) {
  const ParityRun run = TrainWithEngine(GetParam());
  ASSERT_EQ(run.failure, "");
  const GoldenTrace golden = ReadGoldenTrace(GetParam().model + "_f64.txt");
  ASSERT_EQ(golden.steps.size(), run.steps.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, golden.steps[i].loss, 1e-10) << "step " << i;
    EXPECT_NEAR(run.steps[i].grad_norm, golden.steps[i].grad_norm, 1e-10) << "step " << i;
    EXPECT_NEAR(run.steps[i].weight_norm, golden.steps[i].weight_norm, 1e-10) << "step " << i;
  }
  for (size_t i = 0; i < run.paths.size(); ++i) {
    double squares = 0;
    for (double v : run.weights[i].ToVector()) squares += v * v;
    EXPECT_NEAR(std::sqrt(squares), golden.param_norms.at(run.paths[i]), 1e-10) << run.paths[i];
  }
  const bool gathers = GetParam().stage == 3 && GetParam().ranks > 1;
  EXPECT_EQ(run.gather_count > 20 * 5, gathers) << run.gather_count << " gathers";
}

TEST_P(Parity, SingleEqualsTheIndependentReference) {
  ParitySetup setup = GetParam();
  setup.dtype = DType::kF32;
  const ParityRun run = TrainWithEngine(setup);
  ASSERT_EQ(run.failure, "");
  const GoldenTrace golden = ReadGoldenTrace(setup.model + "_f32.txt");
  ASSERT_EQ(golden.steps.size(), run.steps.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, golden.steps[i].loss, 1e-5) << "step " << i;
  }
}

// ---- bits ----

void ExpectSameBits(const ParityRun& got, const ParityRun& expected, const std::string& what) {
  ASSERT_EQ(got.failure, "") << what;
  ASSERT_EQ(got.steps.size(), expected.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].loss, expected.steps[i].loss) << what << ", step " << i;
    EXPECT_EQ(got.steps[i].grad_norm, expected.steps[i].grad_norm) << what << ", step " << i;
  }
  for (size_t i = 0; i < got.weights.size(); ++i) {
    EXPECT_TRUE(BitEqual(got.weights[i], expected.weights[i])) << what << ", " << got.paths[i];
  }
}

class Canonical : public ::testing::TestWithParam<ParitySetup> {};
std::vector<ParitySetup> StageZeroOf(const std::vector<ParitySetup>& setups, bool all) {
  std::vector<ParitySetup> chosen;
  for (const ParitySetup& setup : setups) {
    if (setup.stage == 0 && (all || setup.ranks > 1)) chosen.push_back(setup);
  }
  return chosen;
}
INSTANTIATE_TEST_SUITE_P(Pairwise, Canonical, ::testing::ValuesIn(StageZeroOf(PairwiseSetups(), false)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sweep, Canonical, ::testing::ValuesIn(StageZeroOf(AllSetups(), true)), NameOf);

TEST_P(Canonical, AllStagesHaveTheSameBits) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ParitySetup setup = GetParam();
    setup.dtype = dtype;
    setup.reducer = zero::Reducer::kCanonical;
    setup.steps = 10;
    const ParityRun expected = TrainWithEngine(setup);
    ASSERT_EQ(expected.failure, "");
    for (int stage : {1, 2, 3}) {
      setup.stage = stage;
      setup.overlap = !setup.overlap;
      setup.copying_tier = stage == 2;
      ExpectSameBits(TrainWithEngine(setup), expected, Str(Name(dtype), ", stage ", stage));
    }
  }
}

}  // namespace
}  // namespace tessera::testing
