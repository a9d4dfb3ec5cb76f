// SPDX-License-Identifier: Apache-2.0
// Everything an engine does at once on four ranks, few steps of it: what a thread sanitizer is to look at.
#include "tests/support/golden_inputs.h"
#include "tests/support/tiny_model.h"
#include "tests/zero/engine_harness.h"

namespace tessera::testing {
namespace {

struct ThreadsSetup {
  Way way;
  DType dtype = DType::kF32;
  zero::Reducer reducer = zero::Reducer::kFast;
  int64_t persistence = 0;
};

// Two windows and a rest, with an evaluation, an edit, a step that overflows and reads in between.
std::vector<Tensor> TrainWithEverything(const ThreadsSetup& setup) {
  std::vector<Tensor> weights;
  OnRanks(setup.way, [&](zero::Rank& rank) {
    const TinyModel model = MakeTinyModel("gpt", /*recompute=*/setup.way.stage % 2 == 1, /*dropout=*/0.1);
    zero::Config config = PlainConfig(setup.way, 2);
    UseDType(&config, setup.dtype);
    UseAdam(&config, 0.01, 0.1);
    config.gradient_clipping = 1;
    config.zero.reduce_bucket_size = 4096;
    config.zero.sub_group_size = 5000;
    config.zero.param_persistence_threshold = setup.persistence;
    config.tessera.reducer = setup.reducer;
    auto engine = MakeEngine(*model.module, config, rank, {.loss_weight_per_sample = kGoldenTokens});
    nn::Parameter& edited = model.module->parameter("blocks.0.ln_1.weight");
    for (int micro = 0; micro < 5; ++micro) {
      const GoldenBatch batch = MakeGoldenBatch(micro, rank.index(), 1);
      const auto forward = [&] { return model.loss(batch.ids, batch.targets); };
      const Loss loss = engine.Forward(forward);
      if (micro == 1) engine.EvaluateWith(forward);
      engine.Backward(loss);
      engine.Step();
      if (micro == 1) SetValues(edited, std::vector<double>(32, 1.25));
      if (micro == 3) engine.EvaluateWith(forward);
    }
    engine.EndOfData();
    EXPECT_EQ(engine.global_steps(), 3);
    EXPECT_EQ(engine.skipped_steps(), 0);
    const std::vector<Tensor> mine = Weights(*model.module);
    if (rank.is_main()) weights = mine;
  });
  return weights;
}

TEST(Threads, OverlappingCommunicationChangesNoBitAtAnyStage) {
  for (int stage = 0; stage < 4; ++stage) {
    SCOPED_TRACE(Str("stage ", stage));
    ThreadsSetup setup{.way = {.stage = stage, .ranks = 4}};
    const std::vector<Tensor> plain = TrainWithEverything(setup);
    setup.way.overlap = true;
    ExpectSameBits(TrainWithEverything(setup), plain);
  }
}

TEST(Threads, NorWithTheCanonicalReducerPersistentParametersAndBf16) {
  for (int stage : {1, 2, 3}) {
    SCOPED_TRACE(Str("stage ", stage));
    ThreadsSetup setup{.way = {.stage = stage, .ranks = 4},
                       .dtype = DType::kBF16,
                       .reducer = zero::Reducer::kCanonical,
                       .persistence = 100};
    const std::vector<Tensor> plain = TrainWithEverything(setup);
    setup.way.overlap = true;
    ExpectSameBits(TrainWithEverything(setup), plain);
  }
}

}  // namespace
}  // namespace tessera::testing
