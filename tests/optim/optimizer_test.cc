// SPDX-License-Identifier: Apache-2.0
// What optimizers compute: the golden traces, the worked examples of known faults, and the errors.
#include "optim/optimizer.h"

#include "tests/optim/flat_test.h"

namespace tessera::optim {
namespace {

struct TraceCase {
  std::string name, type;
  Params params;
};
void PrintTo(const TraceCase& trace, std::ostream* out) { *out << trace.name; }

class GoldenTrace : public ::testing::TestWithParam<TraceCase> {};

void ExpectTrace(const TraceCase& trace, DType dtype, double tolerance) {
  const auto start = Golden("opt.");
  const std::vector<double> expected = Golden(trace.name + ".").at(trace.name + ".trace");
  const size_t size = start.at("opt.p").size();
  const auto optimizer = Optimizer::Create(trace.type, trace.params);
  Range range(*optimizer, TensorOf(start.at("opt.p"), dtype), TensorOf(std::vector<double>(size), dtype));
  StepScalars scalars(optimizer->start_values());
  const size_t steps = expected.size() / size;
  ASSERT_EQ(steps, 5u);
  for (size_t step = 0; step < steps; ++step) {
    std::vector<double> gradient(start.at("opt.g").begin() + static_cast<int64_t>(step * size),
                                 start.at("opt.g").begin() + static_cast<int64_t>((step + 1) * size));
    if (trace.name == "lion_zero") gradient[3] = 0;
    range.gradient = TensorOf(gradient, dtype);
    BeginStep(scalars);
    optimizer->Update(range.Span(), scalars);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_NEAR(range.master.At(static_cast<int64_t>(i)), expected[step * size + i], tolerance)
          << "step " << step << " element " << i;
    }
  }
  EXPECT_EQ(scalars.applied_steps(), 5);
}

TEST_P(GoldenTrace, IsMetInF64) { ExpectTrace(GetParam(), DType::kF64, 1e-12); }
TEST_P(GoldenTrace, IsMetInF32) { ExpectTrace(GetParam(), DType::kF32, 1e-6); }

const Params kAdamParams = {{"lr", 0.01}, {"betas", {0.9, 0.95}}, {"eps", 1e-8}, {"weight_decay", 0.1}};

Params With(Params params, const std::string& name, const ParamValue& value) {
  params.insert_or_assign(name, value);
  return params;
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, GoldenTrace,
    ::testing::Values(
        TraceCase{"adamw", "AdamW", kAdamParams}, TraceCase{"adam_l2", "Adam", With(kAdamParams, "adam_w_mode", false)},
        TraceCase{"sgd_momentum", "SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}}},
        TraceCase{"sgd_nesterov", "sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}, {"nesterov", true}}},
        TraceCase{"lion", "Lion", {{"lr", 0.001}, {"betas", {0.9, 0.99}}, {"weight_decay", 0.1}}},
        TraceCase{"lion_zero", "LION", {{"lr", 0.001}, {"betas", {0.9, 0.99}}, {"weight_decay", 0.1}}}),
    [](const auto& info) { return info.param.name; });

double OneStep(const Optimizer& optimizer, double weight, double gradient, bool decay = true,
               DType dtype = DType::kF64) {
  Range range(optimizer, TensorOf({weight}, dtype), TensorOf({gradient}, dtype));
  range.decay = decay;
  StepScalars scalars(optimizer.start_values());
  BeginStep(scalars);
  optimizer.Update(range.Span(), scalars);
  return range.master.At(0);
}

TEST(Adam, NameMeansDecoupledDecayUnlessAdamWModeIsFalse) {
  const Params decay = {{"lr", 0.1}, {"weight_decay", 0.5}};
  // With g = 0 a decoupled decay shrinks the weight by lr * wd; L2 decay turns into a full Adam step.
  EXPECT_NEAR(OneStep(*Optimizer::Create("Adam", decay), 1, 0), 0.95, 1e-15);
  EXPECT_NEAR(OneStep(*Optimizer::Create("aDaMw", decay), 1, 0), 0.95, 1e-15);
  EXPECT_NEAR(OneStep(*Optimizer::Create("Adam", With(decay, "adam_w_mode", false)), 1, 0), 0.9, 1e-7);
}

TEST(Adam, WithoutBiasCorrectionTakesTheMomentsAsTheyAre) {
  const auto optimizer = Optimizer::Create("AdamW", {{"lr", 0.1}, {"eps", 0.0}, {"bias_correction", false}});
  EXPECT_NEAR(OneStep(*optimizer, 1, 0.5), 1 - 0.1 * (0.1 * 0.5) / std::sqrt(0.001 * 0.25), 1e-14);
}

TEST(Adam, EveryRangeOfAStepHasTheSameBiasCorrection) {
  const auto optimizer = Optimizer::Create("AdamW", {{"lr", 0.01}, {"eps", 1e-8}});
  const Tensor ones = Full({1 << 20}, DType::kF32, 1);
  const Range first(*optimizer, ones, ones), second(*optimizer, ones, ones);
  StepScalars scalars(optimizer->start_values());
  for (int step = 0; step < 2; ++step) {
    BeginStep(scalars);
    optimizer->Update(first.Span(), scalars);
    optimizer->Update(second.Span(), scalars);
  }
  EXPECT_NEAR(first.master.At(0), 0.9800000002, 1e-7);
  EXPECT_NEAR(second.master.At(0), 0.9800000002, 1e-7);
  EXPECT_EQ(Bytes(first.master), Bytes(second.master));
  EXPECT_EQ(Bytes(first.master), Bytes(Full({1 << 20}, DType::kF32, first.master.At(0))));
  EXPECT_EQ(scalars.applied_steps(), 2);
}

TEST(Adam, CreationMovesNothingAndTheFirstStepIsStepOne) {
  const Tensor ones = Full({9}, DType::kF64, 1);
  const auto optimizer = Optimizer::Create("AdamW", {{"lr", 0.1}, {"weight_decay", 0.5}});
  const Range range(*optimizer, ones, Full({9}, DType::kF64, 0.5));
  StepScalars scalars(optimizer->start_values());
  EXPECT_EQ(Bytes(range.master), Bytes(ones));
  EXPECT_EQ(scalars.applied_steps(), 0);
  EXPECT_FALSE(scalars.was_step_applied());
  BeginStep(scalars);
  optimizer->Update(range.Span(), scalars);
  EXPECT_NEAR(range.master.At(8), 0.850000002, 1e-11);
  EXPECT_EQ(scalars.applied_steps(), 1);
  EXPECT_TRUE(scalars.was_step_applied());
}

TEST(Optimizer, RangeWithoutDecayOnlyFollowsItsGradient) {
  for (const char* type : {"AdamW", "Adam", "SGD", "Lion"}) {
    Params params = {{"lr", 0.1}, {"weight_decay", 0.5}};
    if (std::string(type) == "Adam") params.insert_or_assign("adam_w_mode", false);
    const auto optimizer = Optimizer::Create(type, params);
    EXPECT_EQ(OneStep(*optimizer, 1.25, 0, false), 1.25) << type;
    EXPECT_LT(OneStep(*optimizer, 1.25, 0, true), 1.25) << type;
  }
}

TEST(Lion, ZeroGradientOnlyDecays) {
  const auto optimizer = Optimizer::Create("Lion", {{"lr", 0.25}, {"weight_decay", 0.5}});
  EXPECT_EQ(OneStep(*optimizer, 2, 0, true, DType::kF32), 1.75);
  EXPECT_EQ(OneStep(*optimizer, 2, -0.0, true, DType::kF32), 1.75);
  EXPECT_EQ(OneStep(*optimizer, 2, 1e-30, true, DType::kF32), 1.5);
  EXPECT_EQ(OneStep(*optimizer, 2, -1e-30, true, DType::kF32), 2.0);
  EXPECT_TRUE(std::isnan(OneStep(*optimizer, 2, NAN)));
}

TEST(Sgd, WithoutMomentumHasNoStateAndFollowsTheGradient) {
  const auto optimizer = Optimizer::Create("SGD", {{"lr", 0.5}});
  EXPECT_EQ(optimizer->state_count(), 0);
  EXPECT_EQ(OneStep(*optimizer, 1, 0.25), 0.875);
}

TEST(Optimizer, DefaultsAndStateNamesAreDeepSpeeds) {
  const auto adam = Optimizer::Create("Adam");
  EXPECT_EQ(adam->start_values().lr, 1e-3);
  EXPECT_EQ(adam->start_values().momentum, 0.9);
  EXPECT_EQ(adam->start_values().beta2, 0.999);
  EXPECT_EQ(adam->state_count(), 2);
  EXPECT_EQ(adam->state_names()[0], "exp_avg");
  EXPECT_EQ(adam->state_names()[1], "exp_avg_sq");
  EXPECT_TRUE(adam->has_betas());
  const auto sgd = Optimizer::Create("SGD", {{"momentum", 0.9}});
  EXPECT_EQ(sgd->state_count(), 1);
  EXPECT_EQ(sgd->state_names()[0], "momentum_buffer");
  EXPECT_FALSE(sgd->has_betas());
  const auto lion = Optimizer::Create("Lion");
  EXPECT_EQ(lion->state_count(), 1);
  EXPECT_EQ(lion->start_values().beta2, 0.999);
  EXPECT_NO_THROW(
      Optimizer::Create("Adam", {{"torch_adam", true}, {"amsgrad", false}, {"fp32_optimizer_states", true}}));
}

TEST(Optimizer, RefusesWhatItCannotDoInOneLine) {
  EXPECT_ERROR("gradient_clipping", Optimizer::Create("Adam", {{"max_grad_norm", 1.0}}));
  EXPECT_ERROR("AdamW: amsgrad is true", Optimizer::Create("adamw", {{"amsgrad", true}}));
  EXPECT_ERROR("expected Adam, AdamW, SGD or Lion", Optimizer::Create("Adamax"));
  EXPECT_ERROR("Adam: unknown parameter learning_rate (0.1); known: lr, betas, eps",
               Optimizer::Create("Adam", {{"learning_rate", 0.1}}));
  EXPECT_ERROR("Adam: lr is -0.1, expected a finite number >= 0", Optimizer::Create("Adam", {{"lr", -0.1}}));
  EXPECT_ERROR("lr is nan", Optimizer::Create("Lion", {{"lr", NAN}}));
  EXPECT_ERROR("lr is inf", Optimizer::Create("SGD", {{"lr", INFINITY}}));
  EXPECT_ERROR("lr is \"auto\", expected a number", Optimizer::Create("SGD", {{"lr", "auto"}}));
  EXPECT_ERROR("betas[1] is 1, expected a number in [0, 1)", Optimizer::Create("Adam", {{"betas", {0.9, 1.0}}}));
  EXPECT_ERROR("betas is [0.9], expected a list of two numbers",
               Optimizer::Create("Lion", {{"betas", std::vector<double>{0.9}}}));
  EXPECT_ERROR("eps is -1e-08", Optimizer::Create("Adam", {{"eps", -1e-8}}));
  EXPECT_ERROR("weight_decay is -1", Optimizer::Create("Lion", {{"weight_decay", -1}}));
  EXPECT_ERROR("bias_correction is 1, expected true or false", Optimizer::Create("Adam", {{"bias_correction", 1}}));
  EXPECT_ERROR("nesterov needs a momentum", Optimizer::Create("SGD", {{"nesterov", true}}));
  EXPECT_ERROR("dampening is 0.5; only 0", Optimizer::Create("SGD", {{"dampening", 0.5}}));
  EXPECT_ERROR("AdamW: adam_w_mode is false", Optimizer::Create("AdamW", {{"adam_w_mode", false}}));
  EXPECT_ERROR("betas[0] is nan", Optimizer::Create(AdamOptions{.beta1 = NAN}));
}

TEST(Optimizer, RefusesSpansThatBreakTheContract) {
  const auto optimizer = Optimizer::Create("AdamW");
  const Range good(*optimizer, Zeros({8}, DType::kF32), Zeros({8}, DType::kF32));
  StepScalars scalars(optimizer->start_values());
  EXPECT_ERROR("AdamW: Update came before the first BeginStep", optimizer->Update(good.Span(), scalars));
  BeginStep(scalars);
  EXPECT_NO_THROW(optimizer->Update(good.Span(), scalars));

  const auto broken = [&](auto&& change) {
    FlatSpan span = good.Span();
    change(span);
    optimizer->Update(span, scalars);
  };
  EXPECT_ERROR("state exp_avg_sq is absent", broken([](FlatSpan& s) { s.states[1] = {}; }));
  EXPECT_ERROR("gradient is absent", broken([](FlatSpan& s) { s.gradient = {}; }));
  EXPECT_ERROR("master is absent", broken([](FlatSpan& s) { s.master = {}; }));
  EXPECT_ERROR("gradient has (7)", broken([&](FlatSpan& s) { s.gradient = Part(good.gradient, 0, 7).Read(); }));
  const Tensor other = Zeros({8}, DType::kBF16), wide = Zeros({8}, DType::kF64), whole = Zeros({8}, DType::kI32);
  EXPECT_ERROR("master is bf16, expected f32 or f64", broken([&](FlatSpan& s) { s.master = other.Write(); }));
  EXPECT_ERROR("exp_avg is f64; they must be equal", broken([&](FlatSpan& s) { s.states[0] = wide.Write(); }));
  EXPECT_ERROR("gradient is i32", broken([&](FlatSpan& s) { s.gradient = whole.Read(); }));
  EXPECT_ERROR("low_precision is f64", broken([&](FlatSpan& s) { s.low_precision = wide.Write(); }));
  EXPECT_ERROR("exp_avg and exp_avg_sq share memory", broken([](FlatSpan& s) { s.states[1] = s.states[0]; }));
  EXPECT_ERROR("master and gradient share memory", broken([](FlatSpan& s) { s.gradient = s.master; }));
  const Tensor square = Zeros({2, 4}, DType::kF32), loose = Zeros({8, 2}, DType::kF32);
  EXPECT_ERROR("must have rank 1", broken([&](FlatSpan& s) { s.master = square.Write(); }));
  EXPECT_ERROR("must be contiguous",
               broken([&](FlatSpan& s) { s.gradient = loose.WithLayout(loose.layout().Select(1, 0)).Read(); }));
  const auto sgd = Optimizer::Create("SGD");
  EXPECT_ERROR("SGD: the span has a state too many, expected 0", sgd->Update(good.Span(), scalars));
}

TEST(Optimizer, MetaSpansAreCheckedAndCostNothing) {
  const ContextGuard guard(Context{.device = kMeta});
  const auto optimizer = Optimizer::Create("AdamW");
  const auto meta = [] { return Empty({int64_t{1} << 40}, DType::kF32); };
  const Tensor p = meta(), g = meta(), m = meta(), v = meta();
  StepScalars scalars(optimizer->start_values());
  GradientNorm norm;
  norm.Add(g.Read());
  BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
  optimizer->Update({.master = p.Write(), .gradient = g.Read(), .states = {m.Write(), v.Write()}}, scalars);
  EXPECT_ERROR("gradient",
               optimizer->Update({.master = p.Write(), .gradient = {}, .states = {m.Write(), v.Write()}}, scalars));
}

}  // namespace
}  // namespace tessera::optim
