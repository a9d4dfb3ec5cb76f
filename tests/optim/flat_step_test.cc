// SPDX-License-Identifier: Apache-2.0
// What the update kernels promise about bits: whatever the cut, the threads and the instruction set, the same ones;
// none at all when the step is skipped; the low-precision copy is the rounded master.
#include "tensor/ops/flat_step.h"

#include "tensor/ops/adam_step.h"
#include "tensor/ops/begin_step.h"
#include "tensor/ops/lion_step.h"
#include "tensor/ops/sgd_step.h"
#include "tensor/thread_pool.h"
#include "tests/optim/flat_test.h"

namespace tessera::optim {
namespace {

struct StepCase {
  std::string name, type;
  Params params;
};
void PrintTo(const StepCase& step_case, std::ostream* out) { *out << step_case.name; }

std::vector<StepCase> StepCases() {
  return {{"AdamW", "AdamW", {{"weight_decay", 0.1}}},
          {"AdamL2", "Adam", {{"weight_decay", 0.1}, {"adam_w_mode", false}}},
          {"Sgd", "SGD", {{"lr", 0.1}, {"weight_decay", 0.1}}},
          {"SgdMomentum", "SGD", {{"lr", 0.1}, {"weight_decay", 0.1}, {"momentum", 0.9}}},
          {"SgdNesterov", "SGD", {{"lr", 0.1}, {"weight_decay", 0.1}, {"momentum", 0.9}, {"nesterov", true}}},
          {"Lion", "Lion", {{"weight_decay", 0.1}}}};
}

struct DTypes {
  DType master, gradient;
  bool low;
  DType low_precision;
};

constexpr DTypes kDTypes[] = {
    {DType::kF32, DType::kF32, false, DType::kBF16}, {DType::kF32, DType::kBF16, true, DType::kBF16},
    {DType::kF32, DType::kF16, true, DType::kF16},   {DType::kF32, DType::kF64, false, DType::kBF16},
    {DType::kF64, DType::kF64, false, DType::kBF16}, {DType::kF64, DType::kBF16, false, DType::kBF16}};

Range RangeOf(const Optimizer& optimizer, const DTypes& dtypes, int64_t n) {
  Range range(optimizer, TensorOf(Values("weights", n), dtypes.master),
              TensorOf(Values("gradient", n), dtypes.gradient));
  if (dtypes.low) range.low_precision = Zeros({n}, dtypes.low_precision);
  return range;
}

// Three clipped steps, each over the parts of the range between `cuts`.
std::string BytesAfterSteps(const StepCase& step_case, const DTypes& dtypes, int64_t n,
                            const std::vector<int64_t>& cuts) {
  const auto optimizer = Optimizer::Create(step_case.type, step_case.params);
  const Range range = RangeOf(*optimizer, dtypes, n);
  StepScalars scalars(optimizer->start_values());
  GradientNorm norm;
  for (int step = 0; step < 3; ++step) {
    norm.Clear();
    norm.Add(range.gradient.Read());
    BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 0.7});
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      optimizer->Update(range.Span(begin, end), scalars);
      begin = end;
    }
  }
  return range.AllBytes();
}

class FlatStep : public ::testing::TestWithParam<StepCase> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, FlatStep, ::testing::ValuesIn(StepCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FlatStep, BitsDoNotDependOnTheCut) {
  constexpr int64_t kNumel = 36001;
  for (const DTypes& dtypes : kDTypes) {
    const std::string whole = BytesAfterSteps(GetParam(), dtypes, kNumel, {kNumel});
    EXPECT_EQ(whole, BytesAfterSteps(GetParam(), dtypes, kNumel, {kNumel / 2, kNumel})) << Name(dtypes.master);
    EXPECT_EQ(whole, BytesAfterSteps(GetParam(), dtypes, kNumel, {0, 1, 18, 18, 1045, 17432, 17435, kNumel}))
        << Name(dtypes.master) << " " << Name(dtypes.gradient);
  }
}

TEST_P(FlatStep, BitsDoNotDependOnTheThreads) {
  constexpr int64_t kNumel = 100003;
  for (const DTypes& dtypes : {kDTypes[0], kDTypes[1], kDTypes[4]}) {
    std::string first;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const ContextGuard guard(Context{.thread_pool = &pool});
      const std::string bytes = BytesAfterSteps(GetParam(), dtypes, kNumel, {kNumel});
      if (threads == 1) first = bytes;
      EXPECT_EQ(first, bytes) << threads << " threads";
    }
  }
}

TEST_P(FlatStep, SkippedStepLeavesEveryByte) {
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    for (const DTypes& dtypes : kDTypes) {
      const auto optimizer = Optimizer::Create(GetParam().type, GetParam().params);
      Range range = RangeOf(*optimizer, dtypes, 3000);
      StepScalars scalars(optimizer->start_values());
      GradientNorm norm;
      BeginStep(scalars);
      optimizer->Update(range.Span(), scalars);  // so that the states are not zero
      const std::string before = range.AllBytes();

      std::vector<double> gradient = Values("gradient", 3000);
      gradient[2999] = bad;
      const Tensor good = range.gradient;
      range.gradient = TensorOf(gradient, dtypes.gradient);
      norm.Add(range.gradient.Read());
      BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
      EXPECT_FALSE(scalars.was_step_applied());
      optimizer->Update(range.Span(), scalars);
      EXPECT_EQ(range.AllBytes(), before) << Name(dtypes.gradient) << " with " << bad;
      EXPECT_EQ(scalars.applied_steps(), 1);
      EXPECT_EQ(scalars.grad_norm_before_clip(), -1);

      norm.Clear();
      norm.Add(good.Read());
      BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
      EXPECT_TRUE(scalars.was_step_applied());
      range.gradient = good;
      optimizer->Update(range.Span(), scalars);
      EXPECT_NE(range.AllBytes(), before);
      EXPECT_EQ(scalars.applied_steps(), 2);
    }
  }
}

TEST_P(FlatStep, LowPrecisionIsTheRoundedMaster) {
  for (const DType low : {DType::kBF16, DType::kF16}) {
    const auto optimizer = Optimizer::Create(GetParam().type, GetParam().params);
    const Range range = RangeOf(*optimizer, {DType::kF32, DType::kF32, true, low}, 20011);
    StepScalars scalars(optimizer->start_values());
    const std::string before = Bytes(range.master);
    for (int step = 0; step < 2; ++step) {
      BeginStep(scalars);
      optimizer->Update(range.Span(), scalars);
    }
    EXPECT_NE(Bytes(range.master), before);
    const auto* master = range.master.Read().as<float>();
    const auto* copy = range.low_precision.Read().as<uint16_t>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < range.master.numel(); ++i) {
      wrong += copy[i] != (low == DType::kBF16 ? ToBFloat16(master[i]).bits : ToFloat16(master[i]).bits);
    }
    EXPECT_EQ(wrong, 0) << Name(low);
    const Range without = RangeOf(*optimizer, {DType::kF32, DType::kF32, false, low}, 20011);
    StepScalars again(optimizer->start_values());
    for (int step = 0; step < 2; ++step) {
      BeginStep(again);
      optimizer->Update(without.Span(), again);
    }
    EXPECT_EQ(Bytes(without.master), Bytes(range.master)) << "the copy may not change the master";
  }
}

TEST_P(FlatStep, EmptyRangeIsLegal) {
  const auto optimizer = Optimizer::Create(GetParam().type, GetParam().params);
  for (const DTypes& dtypes : kDTypes) {
    const Range range = RangeOf(*optimizer, dtypes, 0);
    StepScalars scalars(optimizer->start_values());
    GradientNorm norm;
    norm.Add(range.gradient.Read());
    BeginStep(scalars, {.sum_squares = norm.sum_squares(), .max_norm = 1});
    optimizer->Update(range.Span(), scalars);
    EXPECT_EQ(scalars.grad_norm_before_clip(), 0);
  }
}

TEST_P(FlatStep, WritesNothingBesideTheRange) {
  const auto optimizer = Optimizer::Create(GetParam().type, GetParam().params);
  const Range range = RangeOf(*optimizer, kDTypes[1], 5000);
  const Range untouched = RangeOf(*optimizer, kDTypes[1], 5000);
  StepScalars scalars(optimizer->start_values());
  BeginStep(scalars);
  optimizer->Update(range.Span(1001, 3334), scalars);
  const auto expect_same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(Bytes(Part(a, 0, 1001)), Bytes(Part(b, 0, 1001)));
    EXPECT_EQ(Bytes(Part(a, 3334, 5000)), Bytes(Part(b, 3334, 5000)));
    EXPECT_NE(Bytes(Part(a, 1001, 3334)), Bytes(Part(b, 1001, 3334)));
  };
  expect_same(range.master, untouched.master);
  expect_same(range.low_precision, untouched.low_precision);
  for (size_t i = 0; i < range.states.size(); ++i) expect_same(range.states[i], untouched.states[i]);
  EXPECT_EQ(Bytes(range.gradient), Bytes(untouched.gradient));
}

// Instruction sets -------------------------------------------------------------------------------------------------

struct Isa {
  const char* name;
  bool available;
  void (*adam)(const ops::AdamStepArgs&);
  void (*sgd)(const ops::SgdStepArgs&);
  void (*lion)(const ops::LionStepArgs&);
  void (*begin)(const ops::BeginStepArgs&);
};

std::vector<Isa> Isas() {
  namespace c = ops::cpu;
  std::vector<Isa> all = {
      {"base", true, c::isa_base::AdamStep, c::isa_base::SgdStep, c::isa_base::LionStep, c::isa_base::BeginStep}};
#ifdef TESSERA_HAVE_AVX2
  all.push_back({"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), c::isa_avx2::AdamStep,
                 c::isa_avx2::SgdStep, c::isa_avx2::LionStep, c::isa_avx2::BeginStep});
#endif
#ifdef TESSERA_HAVE_AVX512
  all.push_back({"avx512", __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"),
                 c::isa_avx512::AdamStep, c::isa_avx512::SgdStep, c::isa_avx512::LionStep, c::isa_avx512::BeginStep});
#endif
  std::erase_if(all, [](const Isa& isa) { return !isa.available; });
  return all;
}

// Any finite f32 below 2^40, subnormals and zeros among them.
Tensor AnyFloats(const char* key, int64_t n, DType dtype) {
  const RngKey rng = RngKey(11).With(key);
  Tensor x = Empty({n}, DType::kF32);
  auto* bits = x.Write().as<uint32_t>();
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = rng.Bits(static_cast<uint64_t>(2 * i)), choice = rng.Bits(static_cast<uint64_t>(2 * i + 1));
    const uint32_t exponent = choice % 4 == 0 ? choice / 4 % 168 : 107 + choice / 4 % 20;
    bits[i] = (random & 0x807FFFFFu) | (exponent << 23);
  }
  return CopyTo(x, dtype);
}

std::string BytesOn(const Isa& isa, const StepCase& step_case, const DTypes& dtypes) {
  constexpr int64_t kNumel = 9001;
  const auto optimizer = Optimizer::Create(step_case.type, step_case.params);
  Range range(*optimizer, AnyFloats("weights", kNumel, dtypes.master), AnyFloats("gradient", kNumel, dtypes.gradient));
  if (dtypes.low) range.low_precision = Zeros({kNumel}, dtypes.low_precision);
  StepScalars scalars(optimizer->start_values());
  scalars.SetLossScale(1.7);
  for (int step = 0; step < 4; ++step) {
    isa.begin({.scalars = scalars.Write()});
    const FlatSpan s = range.Span();
    if (step_case.type == "SGD") {
      isa.sgd(
          {s.master, s.gradient, s.states[0], s.low_precision, scalars.Read(), 0.1, step_case.name == "SgdNesterov"});
    } else if (step_case.type == "Lion") {
      isa.lion({s.master, s.gradient, s.states[0], s.low_precision, scalars.Read(), 0.1});
    } else {
      isa.adam({s.master, s.gradient, s.states[0], s.states[1], s.low_precision, scalars.Read(), 1e-8, 0.1,
                step_case.type == "AdamW", true});
    }
  }
  for (int64_t i = 0; i < kNumel; ++i) EXPECT_TRUE(std::isfinite(range.master.At(i))) << "element " << i;
  const auto* block = static_cast<const char*>(scalars.Read().data);
  return range.AllBytes() + std::string(block, ops::kStepSlotCount * sizeof(double));
}

TEST_P(FlatStep, BitsDoNotDependOnTheInstructionSet) {
  const std::vector<Isa> isas = Isas();
  if (isas.size() < 2) GTEST_SKIP() << "one instruction set only";
  for (const DTypes& dtypes : kDTypes) {
    if (dtypes.gradient == DType::kF16) continue;  // most of AnyFloats is not finite in f16
    const std::string base = BytesOn(isas[0], GetParam(), dtypes);
    for (size_t i = 1; i < isas.size(); ++i) {
      EXPECT_TRUE(base == BytesOn(isas[i], GetParam(), dtypes))
          << isas[i].name << " differs from base, master " << Name(dtypes.master) << ", gradient "
          << Name(dtypes.gradient);
    }
  }
}

// Without decay and momentum, SGD's update is one fused multiply-add: p - lr * g.
TEST(FusedMultiplyAdd, IsRoundedOnceOnEveryInstructionSet) {
  constexpr int64_t kNumel = 20000;
  for (const Isa& isa : Isas()) {
    for (const float lr : {0.1f, 1.0f, 0.75f, 1e-3f, 3e-39f, 16777215.0f}) {
      Tensor p = AnyFloats("addend", kNumel, DType::kF32);
      const Tensor g = AnyFloats("factor", kNumel, DType::kF32);
      // Sums that nearly cancel, and products that reach only the last bits of the sum.
      auto* addend = p.Write().as<float>();
      const auto* factor = g.Read().as<float>();
      for (int64_t i = 0; i < kNumel; i += 3) addend[i] = lr * factor[i];
      for (int64_t i = 1; i < kNumel; i += 3) addend[i] = lr * factor[i] * static_cast<float>(1 << (i % 27));
      std::vector<float> expected(addend, addend + kNumel);
      for (int64_t i = 0; i < kNumel; ++i) {
        expected[static_cast<size_t>(i)] = std::fma(-lr, factor[i], expected[static_cast<size_t>(i)]);
      }
      StepScalars scalars({.lr = lr});
      BeginStep(scalars);
      isa.sgd({.master = p.Write(), .gradient = g.Read(), .scalars = scalars.Read()});
      int64_t wrong = 0;
      for (int64_t i = 0; i < kNumel; ++i) wrong += addend[i] != expected[static_cast<size_t>(i)];
      EXPECT_EQ(wrong, 0) << isa.name << ", lr " << lr;
    }
  }
}

}  // namespace
}  // namespace tessera::optim
