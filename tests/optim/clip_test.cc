// SPDX-License-Identifier: Apache-2.0
// The global norm, clipping, unscaling and skipping.
#include "optim/clip.h"

#include <limits>

#include "tensor/ops/sum_squares.h"
#include "tensor/thread_pool.h"
#include "tests/optim/flat_test.h"

namespace tessera::optim {
namespace {

double SumOf(const Tensor& x) {
  GradientNorm norm;
  norm.Add(x.Read());
  return norm.sum_squares().Item();
}

TEST(Clip, LogsTheNormBeforeClippingAndTheFactor) {
  const auto optimizer = Optimizer::Create("SGD", {{"lr", 1.0}});
  const Range range(*optimizer, Zeros({2}, DType::kF64), TensorOf({3, 4}, DType::kF64));
  StepScalars scalars(optimizer->start_values());
  GradientNorm norm;
  norm.Add(range.gradient.Read());
  BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
  optimizer->Update(range.Span(), scalars);
  EXPECT_EQ(scalars.grad_norm_before_clip(), 5.0);
  EXPECT_NEAR(scalars.clip_factor(), 0.19999996, 1e-12);
  EXPECT_NEAR(range.master.At(0), -0.59999988, 1e-12);
  EXPECT_NEAR(range.master.At(1), -0.79999984, 1e-12);
}

TEST(Clip, UnscalesBeforeItMeasures) {
  const auto optimizer = Optimizer::Create("SGD", {{"lr", 1.0}});
  const Range range(*optimizer, Zeros({2}, DType::kF32), TensorOf({3 * 1024.0, 4 * 1024.0}, DType::kF16));
  StepScalars scalars(optimizer->start_values());
  scalars.SetLossScale(1024);
  GradientNorm norm;
  norm.Add(range.gradient.Read());
  BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
  optimizer->Update(range.Span(), scalars);
  EXPECT_EQ(scalars.grad_norm_before_clip(), 5.0);
  EXPECT_NEAR(range.master.At(0), -0.6, 1e-6);
  EXPECT_NEAR(range.master.At(1), -0.8, 1e-6);
}

TEST(Clip, OnlyUnscalesBelowTheLimitAndWithoutOne) {
  for (const double max_norm : {0.0, 6.0}) {
    StepScalars scalars({.lr = 1});
    scalars.SetLossScale(8);
    GradientNorm norm;
    norm.Add(TensorOf({24, 32}, DType::kF32).Read());
    BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = max_norm});
    EXPECT_EQ(scalars.grad_norm_before_clip(), 5.0);
    EXPECT_EQ(scalars.clip_factor(), 1.0);
    EXPECT_EQ(scalars.gradient_factor(), 0.125);
  }
  StepScalars unmeasured({.lr = 1});
  BeginStep(unmeasured);
  EXPECT_TRUE(std::isnan(unmeasured.grad_norm_before_clip()));
  EXPECT_EQ(unmeasured.clip_factor(), 1.0);
  EXPECT_TRUE(unmeasured.was_step_applied());
}

TEST(Clip, RefusesALimitThatIsNone) {
  StepScalars scalars({.lr = 1});
  GradientNorm norm;
  EXPECT_ERROR("max_norm is -1, expected a finite number >= 0",
               BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = -1}));
  EXPECT_ERROR("max_norm is nan", BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = NAN}));
  EXPECT_ERROR("max_norm is inf", BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = INFINITY}));
  EXPECT_ERROR("sum_squares is absent", BeginStep(scalars, {.max_norm = 1}));
  EXPECT_ERROR("loss scale is 0, expected a finite number > 0", scalars.SetLossScale(0));
  EXPECT_ERROR("lr is nan", scalars.SetLr(NAN));
  EXPECT_EQ(scalars.applied_steps(), 0);
}

TEST(Clip, AppliesNonFiniteGradientsWhenAskedTo) {
  StepScalars scalars({.lr = 1});
  GradientNorm norm;
  norm.Add(TensorOf({NAN}, DType::kF32).Read());
  BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1, .skip_non_finite = false});
  EXPECT_TRUE(scalars.was_step_applied());
  EXPECT_EQ(scalars.applied_steps(), 1);
  EXPECT_EQ(scalars.grad_norm_before_clip(), -1);
}

TEST(BeginStep, CountsAppliedStepsOnlyAndMovesTheScheduleWithThem) {
  // lr of update u is u, as a linear warm-up; attempts 1 and 2 overflow.
  std::vector<double> rows;
  for (int u = 1; u <= 10; ++u) rows.insert(rows.end(), {double(u), NAN, NAN});
  StepScalars scalars({.lr = 0, .momentum = 0.9, .beta2 = 0.999});
  scalars.SetSchedule(Tensor::From<double>(rows, {10, 3}));
  std::vector<double> lrs;
  for (int attempt = 1; attempt <= 5; ++attempt) {
    GradientNorm norm;
    norm.Add(TensorOf({attempt <= 2 ? INFINITY : 1.0}, DType::kF32).Read());
    BeginStep(scalars, {.sum_squares = norm.sum_squares()});
    EXPECT_EQ(scalars.was_step_applied(), attempt > 2);
    lrs.push_back(scalars.lr());
  }
  EXPECT_EQ(lrs, (std::vector<double>{0, 0, 1, 2, 3}));
  EXPECT_EQ(scalars.applied_steps(), 3);
  EXPECT_EQ(scalars.momentum(), 0.9);
  EXPECT_EQ(scalars.beta2(), 0.999);
}

TEST(BeginStep, TakesMomentumAndBeta2FromTheScheduleAndStaysOnTheLastRow) {
  StepScalars scalars({.lr = 0, .momentum = 0.9, .beta2 = 0.999});
  scalars.SetAppliedSteps(6);
  scalars.SetSchedule(Tensor::From<double>({1, 0.8, 0.99, 2, 0.7, 0.99}, {2, 3}), 7);
  BeginStep(scalars);
  EXPECT_EQ(scalars.lr(), 1);
  EXPECT_EQ(scalars.momentum(), 0.8);
  EXPECT_EQ(scalars.beta2(), 0.99);
  BeginStep(scalars);
  EXPECT_EQ(scalars.lr(), 2);
  EXPECT_EQ(scalars.momentum(), 0.7);
  BeginStep(scalars);
  EXPECT_EQ(scalars.lr(), 2);
  EXPECT_EQ(scalars.applied_steps(), 9);
  EXPECT_ERROR("expected f64 (updates, 3)", scalars.SetSchedule(Zeros({4, 2}, DType::kF64)));
  EXPECT_ERROR("first update is 0", scalars.SetSchedule(Zeros({4, 3}, DType::kF64), 0));
}

// The order that sum_squares.h writes down, without any of its cleverness.
double SumInWrittenOrder(std::vector<double> terms, bool square) {
  if (terms.empty()) return 0;
  std::vector<double> sums;
  for (size_t begin = 0; begin < terms.size(); begin += 1024) {
    std::vector<double> lanes(32);
    for (size_t i = begin; i < std::min(terms.size(), begin + 1024); ++i) {
      double& lane = lanes[(i - begin) % 32];
      lane = square ? std::fma(terms[i], terms[i], lane) : lane + terms[i];
    }
    for (size_t width = 16; width > 0; width /= 2) {
      for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    sums.push_back(lanes[0]);
  }
  return sums.size() == 1 ? sums[0] : SumInWrittenOrder(sums, false);
}

TEST(SumSquares, HasTheBitsOfTheWrittenOrderInEveryDType) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const int64_t n : {0, 1, 31, 32, 33, 1023, 1024, 1025, 16385, 1024 * 1024 + 1025}) {
      const Tensor x = TensorOf(Values("squares", n), dtype);
      const double expected = SumInWrittenOrder(x.ToVector(), true);
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const ContextGuard guard(Context{.thread_pool = &pool});
        EXPECT_EQ(SumOf(x), expected) << Name(dtype) << " " << n << " on " << threads;
      }
    }
  }
}

TEST(SumSquares, BitsDoNotDependOnTheInstructionSet) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const Tensor x = TensorOf(Values("squares", 70001), dtype);
    const Tensor workspace = Empty({ops::SumSquaresWorkspaceNumel(70001)}, DType::kF64);
    const auto sum_on = [&](void (*kernel)(const ops::SumSquaresArgs&)) {
      const Tensor out = Zeros({1}, DType::kF64);
      kernel({.x = x.Read(), .out = out.Write(), .workspace = workspace.Write()});
      return out.Item();
    };
    const double base = sum_on(ops::cpu::isa_base::SumSquares);
    EXPECT_GT(base, 0);
#ifdef TESSERA_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      EXPECT_EQ(sum_on(ops::cpu::isa_avx2::SumSquares), base);
    }
#endif
#ifdef TESSERA_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
      EXPECT_EQ(sum_on(ops::cpu::isa_avx512::SumSquares), base);
    }
#endif
  }
}

TEST(SumSquares, IsFiniteIfAndOnlyIfEveryElementIs) {
  constexpr int64_t kNumel = 2 * 1024 + 7;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
      for (const int64_t at : {int64_t{0}, int64_t{31}, int64_t{1023}, int64_t{1024}, kNumel - 1}) {
        std::vector<double> values = Values("squares", kNumel);
        values[static_cast<size_t>(at)] = bad;
        EXPECT_FALSE(std::isfinite(SumOf(TensorOf(values, dtype)))) << Name(dtype) << " " << bad << " at " << at;
      }
    }
  }
  const auto all = [](double value, DType dtype) { return SumOf(Full({100000}, dtype, value)); };
  EXPECT_TRUE(std::isfinite(all(std::numeric_limits<float>::max(), DType::kF32)));
  EXPECT_TRUE(std::isfinite(all(65504, DType::kF16)));
  EXPECT_TRUE(std::isfinite(all(3.3e38, DType::kBF16)));
  EXPECT_EQ(all(1e200, DType::kF64), std::numeric_limits<double>::max());
  GradientNorm norm;
  norm.Add(Full({2}, DType::kF64, 1e200).Read());
  norm.Add(Full({2}, DType::kF64, -1e200).Read());
  EXPECT_EQ(norm.sum_squares().Item(), std::numeric_limits<double>::max());
  norm.Add(Full({1}, DType::kF64, NAN).Read());
  norm.Add(Full({1}, DType::kF64, 1).Read());
  EXPECT_TRUE(std::isnan(norm.sum_squares().Item()));
}

TEST(SumSquares, AddsRangesInTurnAndClears) {
  GradientNorm norm;
  norm.Add(TensorOf({1, 2}, DType::kF32).Read());
  norm.Add(TensorOf({3}, DType::kF64).Read());
  norm.Add(TensorOf({}, DType::kBF16).Read());
  EXPECT_EQ(norm.sum_squares().Item(), 14);
  norm.Clear();
  EXPECT_EQ(norm.sum_squares().Item(), 0);
}

TEST(SumSquares, RefusesWhatItCannotRead) {
  const Tensor out = Zeros({1}, DType::kF64), x = Zeros({4000}, DType::kF32), small = Zeros({3}, DType::kF64);
  EXPECT_ERROR("workspace has 3 elements, 4000 elements of x need 5",
               ops::SumSquares({.x = x.Read(), .out = out.Write(), .workspace = small.Write()}));
  GradientNorm norm;
  EXPECT_ERROR("x is i32", norm.Add(Zeros({4}, DType::kI32).Read()));
  const Tensor square = Zeros({4, 4}, DType::kF32);
  EXPECT_ERROR("contiguous", norm.Add(square.WithLayout(square.layout().Transpose(0, 1)).Read()));
}

}  // namespace
}  // namespace tessera::optim
