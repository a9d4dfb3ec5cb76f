// SPDX-License-Identifier: Apache-2.0
#include "tests/zero/engine_harness.h"

#include "tensor/context.h"
#include "tensor/ops/copy.h"

namespace tessera::testing {

std::vector<Way> AllWays(const std::vector<int>& ranks, bool overlap) {
  std::vector<Way> ways;
  for (int stage = 0; stage < 4; ++stage) {
    for (int count : ranks) ways.push_back({.stage = stage, .ranks = count, .overlap = overlap});
  }
  return ways;
}

zero::Config PlainConfig(const Way& way, int accumulation) {
  zero::Config config;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = accumulation;
  config.gradient_clipping = 0;
  config.param_dtype = DType::kF64;
  config.optimizer.type = "SGD";
  config.optimizer.params = {{"lr", 1.0}};
  config.zero.stage = way.stage;
  config.zero.overlap_comm = way.overlap;
  config.zero.param_persistence_threshold = 0;
  config.zero.reduce_bucket_size = 256;
  config.zero.allgather_bucket_size = 256;
  config.zero.sub_group_size = 100;
  config.tessera.comm_timeout_s = 60;
  return config;
}

void UseAdam(zero::Config* config, double lr, double weight_decay) {
  config->optimizer.type = "AdamW";
  config->optimizer.params = {{"lr", lr}, {"weight_decay", weight_decay}};
}

void UseDType(zero::Config* config, DType dtype) {
  config->param_dtype.reset();
  config->bf16.enabled = dtype == DType::kBF16;
  config->fp16.enabled = dtype == DType::kF16;
  if (!IsLowPrecision(dtype)) config->param_dtype = dtype;
}

void UseWarmup(zero::Config* config, double lr, int steps) {
  config->scheduler.type = "WarmupLR";
  config->scheduler.params = {
      {"warmup_min_lr", lr / 10}, {"warmup_max_lr", lr}, {"warmup_num_steps", steps}, {"warmup_type", "linear"}};
}

std::string FailureOf(const Way& way, FunctionRef<void(zero::Rank&)> body, double comm_timeout_s) {
  const absl::Status status = zero::RunRanks(
      {.world_size = way.ranks, .threads_per_rank = 1, .comm_timeout_s = comm_timeout_s}, [&](zero::Rank& rank) {
        SCOPED_TRACE(Str(way.Name(), ", rank ", rank.index()));
        body(rank);
      });
  return std::string(status.message());
}

void OnRanks(const Way& way, FunctionRef<void(zero::Rank&)> body) { EXPECT_EQ(FailureOf(way, body), "") << way.Name(); }

std::vector<double> Values(nn::Parameter& parameter) {
  const nn::ParamLease lease = parameter.Gather();
  return lease.data().ToVector();
}

void SetValues(nn::Parameter& parameter, const std::vector<double>& values) {
  const Tensor source = Tensor::From(values, parameter.shape());
  parameter.Edit([&](Tensor& data) { ops::Copy({.x = source.Read(), .out = data.Write()}); });
}

std::vector<Tensor> Weights(const nn::Module& module) {
  std::vector<Tensor> weights;
  for (nn::Parameter* parameter : module.parameters()) {
    const nn::ParamLease lease = parameter->Gather();
    weights.push_back(CopyTo(lease.data(), lease.data().dtype()));
  }
  return weights;
}

Tensor Vector(const std::vector<double>& values, DType dtype) {
  return CopyTo(Tensor::From(values, {static_cast<int64_t>(values.size())}), dtype);
}

void ExpectSameBits(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(BitEqual(got[i], expected[i])) << "parameter " << i << ", " << got[i].ToString();
  }
}

void ExpectNear(const std::vector<Tensor>& got, const std::vector<Tensor>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(MaxDifference(got[i], expected[i]), tolerance) << "parameter " << i << ", " << got[i].ToString();
  }
}

zero::EngineOptions ListeningOptions(std::vector<std::string>* lines) {
  zero::EngineOptions options;
  options.print = [lines](const std::string& line) {
    if (line.starts_with("step")) lines->push_back(line);
  };
  return options;
}

zero::EngineOptions SpyingOptions(SpyTier** spy) {
  zero::EngineOptions options;
  options.make_tier = [spy](const zero::TierContent& content) {
    auto tier = std::make_unique<SpyTier>(content);
    *spy = tier.get();
    return tier;
  };
  return options;
}

namespace {

// Rows [first, first + rows) of a global batch.
Tensor Rows(const char* name, int step, int64_t first, int64_t rows, int64_t columns, DType dtype) {
  std::vector<double> values;
  for (int64_t row = first; row < first + rows; ++row) {
    const std::vector<double> one = RandomTensor(Str(name, " ", step, " ", row), {columns}).ToVector();
    values.insert(values.end(), one.begin(), one.end());
  }
  return CopyTo(Tensor::From(values, {rows, columns}), dtype);
}

}  // namespace

MlpRun TrainMlp(const Way& way, zero::Config config, int steps, FunctionRef<void(const MlpMicroStep&)> train,
                double dropout) {
  config.train_batch_size = kMlpBatch;
  config.train_micro_batch_size_per_gpu = 0;
  MlpRun run;
  OnRanks(way, [&](zero::Rank& rank) {
    Mlp model(dropout);
    auto engine = MakeEngine(model, config, rank);
    const int64_t micro = engine.train_micro_batch_size_per_gpu();
    const int parts = static_cast<int>(engine.gradient_accumulation_steps());
    const DType dtype = engine.config().parameter_dtype();
    MlpRun mine;
    for (int step = 0; step < steps; ++step) {
      for (int part = 0; part < parts; ++part) {
        const int64_t first = (part * way.ranks + rank.index()) * micro;
        train({.engine = engine,
               .rank = rank,
               .step = step,
               .part = part,
               .x = Rows("x", step, first, micro, Mlp::kInputs, dtype),
               .target = Rows("target", step, first, micro, Mlp::kOutputs, dtype)});
      }
      mine.losses.push_back(engine.get_loss());
      mine.norms.push_back(engine.get_global_grad_norm());
      mine.scales.push_back(engine.loss_scale());
    }
    mine.skipped_steps = engine.skipped_steps();
    mine.weights = Weights(model);
    if (rank.is_main()) run = std::move(mine);
  });
  return run;
}

}  // namespace tessera::testing
