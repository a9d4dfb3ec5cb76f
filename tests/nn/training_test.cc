// SPDX-License-Identifier: Apache-2.0
// Whole models: twenty steps of a tiny GPT and a tiny Llama against an independent implementation, and under the poisoning
// manager against the resident one.
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "autograd/loss.h"
#include "autograd/tape.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tensor/context.h"
#include "tensor/thread_pool.h"
#include "tests/support/golden.h"
#include "tests/support/golden_inputs.h"
#include "tests/support/op_case.h"
#include "tests/support/poisoning_manager.h"
#include "tests/support/tiny_model.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 20;

struct Step {
  double loss, grad_norm, weight_norm;
};

struct Trace {
  std::vector<Step> steps;
  std::vector<Tensor> weights;  // at the end, in registration order
};

double SumSquares(nn::Parameter& parameter) {
  const nn::ParamLease lease = parameter.Gather();
  double sum = 0;
  for (double v : lease.data().ToVector()) sum += v * v;
  return sum;
}

// `finish` ends the gradient window of whichever manager holds the model.
Trace Train(TinyModel& model, const std::function<std::vector<ParamRange>()>& finish, int steps = kSteps) {
  FillGoldenWeights(*model.module);
  std::unique_ptr<optim::PlainOptimizer> optimizer;
  Trace run;
  for (int step = 0; step < steps; ++step) {
    CurrentContext().BeginMicroStep(step, 0);
    const GoldenBatch batch = MakeGoldenBatch(step);
    Step record{};
    {
      Tape tape;
      const Loss loss = model.loss(batch.ids, batch.targets);
      record.loss = loss.Mean();
      Backward(loss);
    }
    const std::vector<ParamRange> ranges = finish();
    if (!optimizer) {
      optimizer = std::make_unique<optim::PlainOptimizer>(
          optim::Optimizer::Create(
              optim::AdamOptions{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}),
          ranges);
    }
    optimizer->Step(ranges, {.max_grad_norm = 1.0});
    record.grad_norm = optimizer->grad_norm();
    double squares = 0;
    for (nn::Parameter* parameter : model.module->parameters()) squares += SumSquares(*parameter);
    record.weight_norm = std::sqrt(squares);
    run.steps.push_back(record);
  }
  for (nn::Parameter* parameter : model.module->parameters()) {
    const nn::ParamLease lease = parameter->Gather();
    run.weights.push_back(CopyTo(lease.data(), lease.data().dtype()));
  }
  return run;
}

Trace TrainResident(TinyModel& model, DType dtype) {
  nn::ResidentManager params(*model.module, {.dtype = dtype});
  return Train(model, [&] { return params.FinishGradients(); });
}

class ModelTest : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  bool recompute() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Models, ModelTest, ::testing::Combine(::testing::Values("gpt", "llama"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) ? "Recompute" : "Plain");
                         });

TEST_P(ModelTest, TwentyStepsInDoubleEqualTheIndependentReference) {
  TinyModel model = MakeTinyModel(name(), recompute());
  nn::ResidentManager params(*model.module, {.dtype = DType::kF64});
  const Trace run = Train(model, [&] { return params.FinishGradients(); });
  const GoldenTrace golden = ReadGoldenTrace(name() + "_f64.txt");
  ASSERT_EQ(golden.steps.size(), run.steps.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, golden.steps[i].loss, 1e-10) << "step " << i;
    EXPECT_NEAR(run.steps[i].grad_norm, golden.steps[i].grad_norm, 1e-10) << "step " << i;
    EXPECT_NEAR(run.steps[i].weight_norm, golden.steps[i].weight_norm, 1e-10) << "step " << i;
  }
  ASSERT_EQ(golden.param_norms.size(), model.module->parameters().size());
  for (nn::Parameter* parameter : model.module->parameters()) {
    ASSERT_TRUE(golden.param_norms.contains(parameter->path())) << parameter->path();
    EXPECT_NEAR(std::sqrt(SumSquares(*parameter)), golden.param_norms.at(parameter->path()), 1e-10)
        << parameter->path();
  }
}

TEST_P(ModelTest, TwentyStepsInSingleEqualTheIndependentReference) {
  TinyModel model = MakeTinyModel(name(), recompute());
  const Trace run = TrainResident(model, DType::kF32);
  const GoldenTrace golden = ReadGoldenTrace(name() + "_f32.txt");
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, golden.steps[i].loss, 1e-5) << "step " << i;
    EXPECT_NEAR(run.steps[i].weight_norm, golden.steps[i].weight_norm, 1e-4) << "step " << i;
  }
}

TEST_P(ModelTest, ThePoisoningManagerGivesTheBitsOfTheResidentOne) {
  for (double dropout : {0.0, 0.1}) {
    if (dropout > 0 && name() != "gpt") continue;
    TinyModel plain = MakeTinyModel(name(), recompute(), dropout),
              poisoned = MakeTinyModel(name(), recompute(), dropout);
    const Trace expected = TrainResident(plain, DType::kF32);
    PoisoningManager params(*poisoned.module);
    const Trace got = Train(poisoned, [&] { return params.FinishGradients(); });
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_EQ(got.steps[i].loss, expected.steps[i].loss) << "step " << i;
    }
    const std::vector<nn::Parameter*> parameters = poisoned.module->parameters();
    for (size_t i = 0; i < expected.weights.size(); ++i) {
      EXPECT_TRUE(BitEqual(got.weights[i], expected.weights[i])) << parameters[i]->path();
      EXPECT_EQ(params.ready_count(*parameters[i]), kSteps) << parameters[i]->path();
    }
    EXPECT_EQ(params.alive_gathers(), 0);
  }
}

TEST_P(ModelTest, TwoModelsTrainOnTwoThreadsAtOnce) {
  constexpr int kFewSteps = 4;
  const auto train = [&](Trace* trace) {
    TinyModel model = MakeTinyModel(name(), recompute());
    PoisoningManager params(*model.module);
    *trace = Train(
        model, [&] { return params.FinishGradients(); }, kFewSteps);
  };
  Trace alone, first, second;
  train(&alone);
  std::thread a([&] { train(&first); }), b([&] { train(&second); });
  a.join();
  b.join();
  for (const Trace* trace : {&first, &second}) {
    for (size_t i = 0; i < alone.weights.size(); ++i) EXPECT_TRUE(BitEqual(trace->weights[i], alone.weights[i]));
  }
}

TEST_P(ModelTest, GradientTargetsMayBeOfAnotherDtype) {
  TinyModel plain = MakeTinyModel(name(), recompute()), other = MakeTinyModel(name(), recompute());
  const Trace expected = TrainResident(plain, DType::kF32);
  PoisoningManager params(*other.module, {.target_dtype = DType::kF64});
  const Trace got = Train(other, [&] { return params.FinishGradients(); });
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss, expected.steps[i].loss, 1e-5) << "step " << i;
  }
}

TEST_P(ModelTest, RecomputeChangesNoBit) {
  for (double dropout : {0.0, 0.1}) {
    if (dropout > 0 && name() != "gpt") continue;
    TinyModel plain = MakeTinyModel(name(), false, dropout), other = MakeTinyModel(name(), recompute(), dropout);
    const Trace expected = TrainResident(plain, DType::kF32), got = TrainResident(other, DType::kF32);
    for (size_t i = 0; i < expected.weights.size(); ++i) EXPECT_TRUE(BitEqual(got.weights[i], expected.weights[i]));
  }
}

TEST_P(ModelTest, BackwardGathersWhatItNeedsAndNoMore) {
  TinyModel model = MakeTinyModel(name(), recompute());
  PoisoningManager params(*model.module);
  FillGoldenWeights(*model.module);
  params.ResetCounts();
  const GoldenBatch batch = MakeGoldenBatch(0);
  {
    Tape tape;
    Backward(model.loss(batch.ids, batch.targets));
  }
  for (nn::Parameter* parameter : model.module->parameters()) {
    const std::string& path = parameter->path();
    const bool embedding = path == "wte.weight" || path == "wpe.weight" || path == "embed_tokens.weight";
    const bool head = path == "lm_head.weight";
    const bool bias = path.ends_with("bias");
    const bool in_block = path.starts_with("blocks.") || path.starts_with("layers.");
    const int recomputed = recompute() && in_block ? 1 : 0;
    EXPECT_EQ(params.gathers(*parameter, Phase::kRecompute), recomputed) << path;
    // The backward of an embedding, a bias, or the fused head reads no weight; what was recomputed is still there.
    const int expected = embedding || head || bias || recomputed ? 0 : 1;
    EXPECT_EQ(params.gathers(*parameter, Phase::kBackward), expected) << path;
    EXPECT_EQ(params.ready_count(*parameter), 1) << path;
  }
}

TEST_P(ModelTest, HasTheSameBitsOnAnyNumberOfThreads) {
  std::vector<Trace> traces;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Context context = CurrentContext();
    context.thread_pool = &pool;
    const ContextGuard guard(context);
    TinyModel model = MakeTinyModel(name(), recompute(), name() == "gpt" ? 0.1 : 0);
    traces.push_back(TrainResident(model, DType::kF32));
  }
  for (size_t i = 0; i < traces[0].weights.size(); ++i) {
    EXPECT_TRUE(BitEqual(traces[0].weights[i], traces[1].weights[i]));
  }
}

TEST_P(ModelTest, EvaluationRecordsNothingAndKeepsNothing) {
  TinyModel model = MakeTinyModel(name(), recompute());
  nn::ResidentManager params(*model.module);
  const GoldenBatch batch = MakeGoldenBatch(0);
  const double warm = model.loss(batch.ids, batch.targets).Mean();
  const int64_t before = CpuAllocator().stats().bytes;
  EXPECT_EQ(model.loss(batch.ids, batch.targets).Mean(), warm);
  EXPECT_EQ(CpuAllocator().stats().bytes, before);
}

TEST_P(ModelTest, SteadyStepsAskTheSystemForNoMemory) {
  TinyModel model = MakeTinyModel(name(), recompute());
  nn::ResidentManager params(*model.module);
  const GoldenBatch batch = MakeGoldenBatch(0);
  const auto step = [&] {
    Tape tape;
    Backward(model.loss(batch.ids, batch.targets));
    params.FinishGradients();
  };
  step();
  step();
  const int64_t before = CpuAllocator().stats().system_allocation_count;
  step();
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(CpuAllocator().stats().system_allocation_count, before);
#endif
}

TEST_P(ModelTest, SixteenBitTrainingFollowsSingle) {
  TinyModel single = MakeTinyModel(name(), recompute()), low = MakeTinyModel(name(), recompute());
  const Trace expected = TrainResident(single, DType::kF32), got = TrainResident(low, DType::kBF16);
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss, expected.steps[i].loss, 0.03) << "step " << i;
  }
}

TEST(Gpt, CountsATiedHeadOnce) {
  const nn::Gpt model(nn::GptConfig::Gpt2_124M());
  EXPECT_EQ(model.ParameterCount(), 124439808);
}

TEST(Llama, CountsItsParameters) {
  const nn::Llama model(nn::LlamaConfig::Llama3_2_1B());
  EXPECT_EQ(model.ParameterCount(), 1235814400);
}

TEST(Gpt, MoreTokensThanPositionsIsAClearError) {
  nn::Gpt model({.vocab_size = 67, .n_positions = 16, .n_embd = 32, .n_layer = 1, .n_head = 4});
  nn::ResidentManager params(model);
  const Tensor ids = Tensor::From(std::vector<int64_t>(17, 1), {1, 17});
  EXPECT_EQ(ErrorOf([&] { model(ids); }), "gpt: gpt: 17 tokens are more than the 16 positions of the model");
}

TEST(Llama, HeadsMustBeAMultipleOfKeyValueHeads) {
  nn::LlamaConfig config{.num_attention_heads = 6, .num_key_value_heads = 4};
  EXPECT_EQ(ErrorOf([&] { nn::Llama model(config); }),
            "llama config: 6 heads and 4 key-value heads: heads must be a positive multiple of key-value heads");
}

TEST(Llama, AnExplicitHeadSizeWins) {
  nn::LlamaConfig config{.vocab_size = 8,
                         .hidden_size = 10,
                         .intermediate_size = 4,
                         .num_hidden_layers = 1,
                         .num_attention_heads = 4,
                         .num_key_value_heads = 2,
                         .head_dim = 4};
  nn::Llama model(config);
  EXPECT_EQ(model.parameter("layers.0.self_attn.q_proj.weight").shape(), Shape({16, 10}));
  EXPECT_EQ(model.parameter("layers.0.self_attn.k_proj.weight").shape(), Shape({8, 10}));
  EXPECT_EQ(model.parameter("layers.0.self_attn.o_proj.weight").shape(), Shape({10, 16}));
  config.head_dim = 0;
  EXPECT_NE(ErrorOf([&] { nn::Llama other(config); }).find("10 is not divisible by num_attention_heads 4"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
