// SPDX-License-Identifier: Apache-2.0
#include "tests/zero/parity.h"

#include <cmath>

#include "tensor/context.h"
#include "tests/support/copying_tier.h"
#include "tests/support/golden_inputs.h"
#include "tests/support/tiny_model.h"
#include "zero/engine.h"

namespace tessera::testing {
namespace {

void Measure(nn::Module& module, bool is_main, double* norm, std::vector<Tensor>* copies) {
  double squares = 0;
  for (nn::Parameter* parameter : module.parameters()) {
    const nn::ParamLease lease = parameter->Gather();
    const Tensor data = lease.data();  // every rank asks: a gather is a collective
    if (!is_main) continue;
    for (double v : data.ToVector()) squares += v * v;
    if (copies != nullptr) copies->push_back(CopyTo(data, data.dtype()));
  }
  *norm = std::sqrt(squares);
}

void TrainRank(const ParitySetup& setup, zero::Rank& rank, ParityRun* run) {
  TinyModel model = MakeTinyModel(setup.model, setup.recompute, setup.dropout);
  zero::EngineOptions options{.loss_weight_per_sample = static_cast<double>(kGoldenTokens), .poison_slots = true};
  options.optimizer = optim::Optimizer::Create(
      optim::AdamOptions{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  if (setup.copying_tier) {
    options.make_tier = [](const zero::TierContent& content) { return std::make_unique<CopyingTier>(content); };
  }
  auto created = zero::Engine::Create(*model.module, ConfigOf(setup), rank, std::move(options));
  if (!created.ok()) throw Error(std::string(created.status().message()));
  auto& engine = *created;
  FillGoldenWeights(*model.module);
  const int64_t micro = engine.train_micro_batch_size_per_gpu();
  double norm = 0;
  for (int step = 0; step < setup.steps; ++step) {
    for (int part = 0; part < setup.accumulation; ++part) {
      const GoldenBatch batch = MakeGoldenBatch(step, (part * setup.ranks + rank.index()) * micro, micro);
      const Loss loss = engine.Forward([&] { return model.loss(batch.ids, batch.targets); });
      engine.Backward(loss);
      engine.Step();
    }
    const bool last = step + 1 == setup.steps;
    Measure(*model.module, rank.is_main(), &norm, last ? &run->weights : nullptr);
    if (rank.is_main()) run->steps.push_back({engine.get_loss(), engine.get_global_grad_norm(), norm});
  }
  if (!rank.is_main()) return;
  for (nn::Parameter* parameter : model.module->parameters()) run->paths.push_back(parameter->path());
  run->gather_count = engine.gather_count();
}

}  // namespace

std::string ParitySetup::Name() const {
  return Str(model == "gpt" ? "Gpt" : "Llama", "Stage", stage, "Ranks", ranks, recompute ? "Recompute" : "Plain", "A",
             accumulation);
}

zero::Config ConfigOf(const ParitySetup& setup) {
  zero::Config config;
  config.train_batch_size = kGoldenBatchSize;
  config.gradient_accumulation_steps = setup.accumulation;
  config.gradient_clipping = 1.0;
  config.zero.stage = setup.stage;
  config.zero.overlap_comm = setup.overlap;
  config.zero.param_persistence_threshold = setup.persistence;
  config.zero.reduce_bucket_size = setup.bucket;
  config.zero.allgather_bucket_size = setup.bucket;
  config.zero.sub_group_size = setup.sub_group;
  config.tessera.reducer = setup.reducer;
  config.tessera.comm_timeout_s = 60;
  if (setup.dtype == DType::kBF16) {
    config.bf16.enabled = true;
  } else if (setup.dtype == DType::kF16) {
    config.fp16.enabled = true;
  } else {
    config.param_dtype = setup.dtype;
  }
  return config;
}

ParityRun TrainWithEngine(const ParitySetup& setup) {
  ParityRun run;
  const absl::Status status =
      zero::RunRanks({.world_size = setup.ranks, .threads_per_rank = 1, .comm_timeout_s = 60}, [&](zero::Rank& rank) {
        ParityRun mine;
        TrainRank(setup, rank, &mine);
        if (rank.is_main()) run = std::move(mine);
      });
  if (!status.ok()) run.failure = std::string(status.message());
  return run;
}

}  // namespace tessera::testing
