// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_case.h"

#include <cmath>
#include <memory>

#include "autograd/tape.h"
#include "tensor/context.h"
#include "tensor/cuda/allocator.h"
#include "tensor/cuda/device.h"
#include "tensor/ops/copy.h"
#include "tensor/thread_pool.h"
#include "tests/support/guard_allocator.h"

namespace tessera::testing {

// A binary may have cases of one kind only.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpCaseTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FusedOpCaseTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaOpCaseTest);

std::vector<OpCase> FusedCases(std::vector<OpCase> cases) {
  std::erase_if(cases, [](const OpCase& op_case) { return !op_case.composition; });
  return cases;
}

std::vector<OpCase> CudaCases(std::vector<OpCase> cases) {
  std::erase_if(cases, [](const OpCase& op_case) { return op_case.cuda == OnCuda::kNothing; });
  return cases;
}

std::string OpCaseName(const ::testing::TestParamInfo<OpCase>& info) { return info.param.name; }

namespace {

// Every block of a test lies between guard zones; fresh memory is NaN.
class Guarded {
 public:
  Guarded() : guard_(ContextWith(&allocator_)) {}
  ~Guarded() { EXPECT_EQ(allocator_.damaged_blocks(), 0) << "an op wrote outside its tensors"; }

 private:
  static Context ContextWith(Allocator* allocator) {
    Context context = CurrentContext();
    context.cpu_allocator = allocator;
    return context;
  }
  GuardAllocator allocator_;
  ContextGuard guard_;
};

std::vector<Tensor> MakeInputs(const OpCase& op_case, DType dtype) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const OpInput& spec = op_case.inputs[i];
    const std::string key = op_case.name + "/" + std::to_string(i);
    if (spec.index_below > 0) {
      std::vector<int64_t> ids = spec.indexes;
      for (uint64_t k = 0; ids.size() < static_cast<size_t>(spec.shape.numel()); ++k) {
        ids.push_back(static_cast<int64_t>(RngKey(2).With(key).Bits(k)) % spec.index_below);
      }
      inputs.push_back(Tensor::From(ids, spec.shape));
    } else {
      inputs.push_back(RandomTensor(key, spec.shape, spec.low, spec.high, dtype));
    }
  }
  return inputs;
}

std::vector<Tensor> Evaluate(const OpFunction& f, std::span<const Tensor> tensors) {
  const std::vector<Input> inputs(tensors.begin(), tensors.end());
  return f(inputs);
}

Tensor OutputWeights(const OpCase& op_case, size_t output, const Tensor& like) {
  const Tensor weights = RandomTensor(op_case.name + "/dy" + std::to_string(output), like.shape(), -1, 1, like.dtype());
  return like.device().is_cuda() ? CopyTo(weights, like.device()) : weights;
}

struct Result {
  std::vector<Tensor> outputs, grads;  // grads[i] undefined for inputs that are not differentiable
};

// Forward and backward with gradient weights fixed by the case.
Result ForwardBackward(const OpCase& op_case, const OpFunction& f, std::span<const Tensor> inputs) {
  Tape tape;
  std::vector<Tensor> watched;
  for (size_t i = 0; i < inputs.size(); ++i) {
    watched.push_back(op_case.inputs[i].differentiable ? tape.Watch(inputs[i]) : inputs[i]);
  }
  Result result;
  const std::vector<Tensor> outputs = Evaluate(f, watched);
  std::vector<Tensor> seeds, tracked;
  for (size_t i = 0; i < outputs.size(); ++i) {
    result.outputs.push_back(CopyTo(outputs[i], outputs[i].dtype()));
    if (!outputs[i].tracked()) continue;
    tracked.push_back(outputs[i]);
    seeds.push_back(OutputWeights(op_case, i, outputs[i]));
  }
  tape.Backward(tracked, seeds);
  for (size_t i = 0; i < inputs.size(); ++i) {
    result.grads.push_back(op_case.inputs[i].differentiable ? tape.Grad(watched[i]) : Tensor());
  }
  return result;
}

double WeightedSum(const OpCase& op_case, std::span<const Tensor> inputs) {
  const std::vector<Tensor> outputs = Evaluate(op_case.run, inputs);
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<double> y = outputs[i].ToVector(), w = OutputWeights(op_case, i, outputs[i]).ToVector();
    for (size_t k = 0; k < y.size(); ++k) sum += y[k] * w[k];
  }
  return sum;
}

void ExpectNear(const Result& a, const Result& b, double relative, const std::string& what) {
  ASSERT_EQ(a.outputs.size(), b.outputs.size()) << what;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const double scale = std::max(1.0, MaxMagnitude(b.outputs[i]));
    EXPECT_LE(MaxDifference(a.outputs[i], b.outputs[i]), relative * scale) << what << ", output " << i;
  }
  for (size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_EQ(a.grads[i].defined(), b.grads[i].defined()) << what << ", gradient " << i;
    if (!a.grads[i].defined()) continue;
    const double scale = std::max(1.0, MaxMagnitude(b.grads[i]));
    EXPECT_LE(MaxDifference(a.grads[i], b.grads[i]), relative * scale) << what << ", gradient " << i;
  }
}

void ExpectBitEqual(const Result& a, const Result& b, const std::string& what) {
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    EXPECT_TRUE(BitEqual(a.outputs[i], b.outputs[i])) << what << ", output " << i;
  }
  for (size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_EQ(a.grads[i].defined(), b.grads[i].defined()) << what << ", gradient " << i;
    if (a.grads[i].defined()) {
      EXPECT_TRUE(BitEqual(a.grads[i], b.grads[i])) << what << ", gradient " << i;
    }
  }
}

bool AnyDifferentiable(const OpCase& op_case) {
  for (const OpInput& input : op_case.inputs) {
    if (input.differentiable) return true;
  }
  return false;
}

// x's values inside a larger, NaN-filled block: a gap after each row, and an offset.
Tensor WithRowGaps(const Tensor& x) {
  Shape padded = x.shape();
  padded[x.rank() - 1] += 3;
  Tensor block = Full(padded, x.dtype(), std::nan(""));
  Layout inner = block.layout().Narrow(-1, 2, x.size(-1));
  Tensor view = block.WithLayout(inner);
  ops::Copy({.x = x.Read(), .out = view.Write()});
  return view;
}

// x's values with the first and last dimension swapped in memory.
Tensor Transposed(const Tensor& x) {
  Shape swapped = x.shape();
  std::swap(swapped[0], swapped[x.rank() - 1]);
  Tensor block = Empty(swapped, x.dtype());
  Tensor view = block.WithLayout(block.layout().Transpose(0, -1));
  ops::Copy({.x = x.Read(), .out = view.Write()});
  return view;
}

// x's first slice along dim 0 seen size(0) times through stride 0.
Tensor Expanded(const Tensor& x) {
  Layout first = x.layout().Narrow(0, 0, 1);
  return x.WithLayout(first.Expand(x.shape()));
}

struct Variant {
  const char* name;
  Tensor x;
  bool promised;
};

std::vector<Variant> LayoutVariants(const Tensor& x, Layouts layouts) {
  std::vector<Variant> variants = {{"row gaps", WithRowGaps(x), layouts != Layouts::kContiguous}};
  if (x.rank() >= 2) {
    variants.push_back({"transposed", Transposed(x), layouts == Layouts::kAny});
    variants.push_back({"expanded", Expanded(x), layouts != Layouts::kContiguous});
  }
  return variants;
}

// The Context of tests on the first GPU; its fresh memory is NaN.
class OnGpu {
 public:
  OnGpu() : guard_(GpuContext()) { SetPoison(true); }
  ~OnGpu() { SetPoison(false); }

 private:
  static Context GpuContext() {
    Context context = CurrentContext();
    context.device = Cuda();
    return context;
  }
  static void SetPoison(bool poison) {
    if constexpr (kBuiltWithCuda) CudaAllocator(0).SetPoison(poison);
  }
  ContextGuard guard_;
};

std::vector<Tensor> AllTo(Device device, std::span<const Tensor> tensors) {
  std::vector<Tensor> moved;
  for (const Tensor& x : tensors) moved.push_back(x.defined() ? CopyTo(x, device) : x);
  return moved;
}

// Forward, and backward where the case has it on CUDA; the result is on the CPU.
Result RunCudaCase(const OpCase& op_case, std::span<const Tensor> inputs) {
  Result result;
  if (op_case.cuda == OnCuda::kForward) {
    result.outputs = Evaluate(op_case.run, inputs);
  } else {
    result = ForwardBackward(op_case, op_case.run, inputs);
  }
  return {AllTo(kCpu, result.outputs), AllTo(kCpu, result.grads)};
}

}  // namespace

TEST_P(OpCaseTest, BackwardMatchesFiniteDifferences) {
  const OpCase& op_case = GetParam();
  if (!AnyDifferentiable(op_case)) GTEST_SKIP() << "nothing to differentiate";
  const Guarded guarded;
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF64);
  const Result result = ForwardBackward(op_case, op_case.run, inputs);
  constexpr double kEps = 1e-6;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op_case.inputs[i].differentiable) continue;
    const int64_t numel = inputs[i].numel();
    if (!result.grads[i].defined()) {
      EXPECT_EQ(numel, 0) << "no gradient reached input " << i;
      continue;
    }
    ASSERT_EQ(result.grads[i].shape(), inputs[i].shape()) << "gradient " << i;
    const std::vector<double> grad = result.grads[i].ToVector();
    std::vector<Tensor> moved(inputs.begin(), inputs.end());
    const int64_t step = std::max<int64_t>(1, numel / 96);  // a spread of elements of large inputs
    for (int64_t k = 0; k < numel; k += step) {
      moved[i] = CopyTo(inputs[i], DType::kF64);
      double* element = moved[i].Write().as<double>() + k;
      const double x = *element;
      *element = x + kEps;
      const double above = WeightedSum(op_case, moved);
      *element = x - kEps;
      const double below = WeightedSum(op_case, moved);
      const double numeric = (above - below) / (2 * kEps);
      ASSERT_NEAR(grad[static_cast<size_t>(k)], numeric,
                  op_case.finite_difference_tolerance * std::max(1.0, std::abs(numeric)))
          << "input " << i << ", element " << k;
    }
  }
}

TEST_P(FusedOpCaseTest, FusedEqualsComposition) {
  const OpCase& op_case = GetParam();
  const Guarded guarded;
  for (auto [dtype, tolerance] : {std::pair(DType::kF64, 1e-12), std::pair(DType::kF32, 2e-6)}) {
    const std::vector<Tensor> inputs = MakeInputs(op_case, dtype);
    ExpectNear(ForwardBackward(op_case, op_case.run, inputs), ForwardBackward(op_case, op_case.composition, inputs),
               tolerance, std::string(Name(dtype)));
  }
}

TEST_P(OpCaseTest, SingleMatchesDouble) {
  const OpCase& op_case = GetParam();
  if (!AnyDifferentiable(op_case)) GTEST_SKIP() << "nothing to differentiate";
  const Guarded guarded;
  const std::vector<Tensor> single = MakeInputs(op_case, DType::kF32);
  std::vector<Tensor> wide;
  for (const Tensor& x : single) wide.push_back(IsFloating(x.dtype()) ? CopyTo(x, DType::kF64) : x);
  ExpectNear(ForwardBackward(op_case, op_case.run, single), ForwardBackward(op_case, op_case.run, wide), 5e-6, "f32");
}

TEST_P(OpCaseTest, LowPrecisionMatchesSingle) {
  const OpCase& op_case = GetParam();
  if (!op_case.low_precision) GTEST_SKIP() << "not for 16-bit types";
  const Guarded guarded;
  for (auto [dtype, ulp] : {std::pair(DType::kBF16, 0x1p-8), std::pair(DType::kF16, 0x1p-11)}) {
    const std::vector<Tensor> low = MakeInputs(op_case, dtype);
    std::vector<Tensor> single;
    for (const Tensor& x : low) single.push_back(IsFloating(x.dtype()) ? CopyTo(x, DType::kF32) : x);
    ExpectNear(ForwardBackward(op_case, op_case.run, low), ForwardBackward(op_case, op_case.run, single),
               op_case.low_precision_ulps * ulp, std::string(Name(dtype)));
  }
}

TEST_P(OpCaseTest, EveryLayoutGivesTheSameOrIsRefused) {
  const OpCase& op_case = GetParam();
  const Guarded guarded;
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF64);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!IsFloating(inputs[i].dtype()) || inputs[i].rank() == 0 || inputs[i].numel() == 0) continue;
    for (const Variant& variant : LayoutVariants(inputs[i], op_case.layouts)) {
      std::vector<Tensor> dense(inputs.begin(), inputs.end()), strided = dense;
      dense[i] = CopyTo(variant.x, DType::kF64);
      strided[i] = variant.x;
      const bool really_strided = !variant.x.layout().IsContiguous();
      Result got;
      try {
        got = ForwardBackward(op_case, op_case.run, strided);
      } catch (const Error& error) {
        EXPECT_TRUE(really_strided && !variant.promised)
            << "input " << i << " with " << variant.name << " was refused: " << error.what();
        continue;
      }
      ExpectNear(got, ForwardBackward(op_case, op_case.run, dense), 1e-12,
                 "input " + std::to_string(i) + ", " + variant.name);
    }
  }
}

TEST_P(OpCaseTest, ParametersGoByReferenceIntoTheirTargets) {
  const OpCase& op_case = GetParam();
  if (!op_case.parameters || !AnyDifferentiable(op_case)) GTEST_SKIP() << "takes no parameters";
  const Guarded guarded;
  const std::vector<Tensor> tensors = MakeInputs(op_case, DType::kF32);
  const Result expected = ForwardBackward(op_case, op_case.run, tensors);
  for (const DType grad_dtype : {DType::kF32, DType::kF64}) {
    std::vector<std::unique_ptr<TestParameter>> parameters;
    std::vector<Input> inputs;
    for (size_t i = 0; i < tensors.size(); ++i) {
      parameters.push_back(nullptr);
      if (op_case.inputs[i].differentiable) {
        parameters[i] = std::make_unique<TestParameter>(Str("p", i), tensors[i], grad_dtype);
        inputs.emplace_back(ParamRef(parameters[i].get()));
      } else {
        inputs.emplace_back(tensors[i]);
      }
    }
    Tape tape;
    // Twice on one tape: the second use must add to the first.
    std::vector<Tensor> outputs = op_case.run(inputs), seeds;
    std::vector<Tensor> again = op_case.run(inputs);
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      if (outputs[i].tracked()) seeds.push_back(OutputWeights(op_case, i, outputs[i]));
    }
    std::vector<Tensor> tracked;
    for (const std::vector<Tensor>* list : {&outputs, &again}) {
      for (const Tensor& output : *list) {
        if (output.tracked()) tracked.push_back(output);
      }
    }
    const size_t count = seeds.size();
    for (size_t i = 0; i < count; ++i) seeds.push_back(seeds[i]);
    tape.Backward(tracked, seeds);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (parameters[i] == nullptr) continue;
      EXPECT_EQ(parameters[i]->ready_count, 1) << "parameter " << i;
      if (tensors[i].numel() == 0) continue;
      ASSERT_GE(parameters[i]->target_count, 1) << "no gradient was written for parameter " << i;
      const std::vector<double> got = parameters[i]->grad().ToVector(), once = expected.grads[i].ToVector();
      const double scale = std::max(1.0, MaxMagnitude(expected.grads[i]));
      for (size_t k = 0; k < got.size(); ++k) {
        ASSERT_NEAR(got[k], 2 * once[k], 4e-6 * scale) << "parameter " << i << ", element " << k;
      }
    }
  }
}

TEST_P(OpCaseTest, MetaGivesTheSameShapes) {
  const OpCase& op_case = GetParam();
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF32);
  const std::vector<Tensor> expected = Evaluate(op_case.run, inputs);
  std::vector<Tensor> meta;
  for (const Tensor& x : inputs) meta.push_back(EmptyOn(kMeta, x.shape(), x.dtype()));
  Context context = CurrentContext();
  context.device = kMeta;
  const ContextGuard guard(context);
  const int64_t before = CpuAllocator().stats().allocation_count;
  const Result got = [&] {
    Tape tape;
    std::vector<Tensor> watched, seeds;
    for (size_t i = 0; i < meta.size(); ++i) {
      watched.push_back(op_case.inputs[i].differentiable ? tape.Watch(meta[i]) : meta[i]);
    }
    Result result;
    result.outputs = Evaluate(op_case.run, watched);
    std::vector<Tensor> tracked;
    for (const Tensor& output : result.outputs) {
      if (!output.tracked()) continue;
      tracked.push_back(output);
      seeds.push_back(EmptyLike(output));
    }
    tape.Backward(tracked, seeds);
    return result;
  }();
  EXPECT_EQ(CpuAllocator().stats().allocation_count, before) << "the meta run allocated CPU memory";
  ASSERT_EQ(got.outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got.outputs[i].shape(), expected[i].shape()) << "output " << i;
    EXPECT_EQ(got.outputs[i].dtype(), expected[i].dtype()) << "output " << i;
  }
}

TEST_P(OpCaseTest, SecondBackwardSaysTheGraphIsFreed) {
  const OpCase& op_case = GetParam();
  if (!AnyDifferentiable(op_case)) GTEST_SKIP() << "nothing to differentiate";
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF32);
  Tape tape;
  std::vector<Tensor> watched;
  for (size_t i = 0; i < inputs.size(); ++i) {
    watched.push_back(op_case.inputs[i].differentiable ? tape.Watch(inputs[i]) : inputs[i]);
  }
  const std::vector<Tensor> outputs = Evaluate(op_case.run, watched);
  const Tensor seed = OutputWeights(op_case, 0, outputs[0]);
  tape.Backward(outputs[0], seed);
  EXPECT_NE(ErrorOf([&] { tape.Backward(outputs[0], seed); }).find("already freed"), std::string::npos);
}

TEST_P(OpCaseTest, BitsDoNotDependOnThreads) {
  const OpCase& op_case = GetParam();
  if (!AnyDifferentiable(op_case)) GTEST_SKIP() << "nothing to differentiate";
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF32);
  std::vector<Result> results;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Context context = CurrentContext();
    context.thread_pool = &pool;
    const ContextGuard guard(context);
    results.push_back(ForwardBackward(op_case, op_case.run, inputs));
  }
  ExpectBitEqual(results[0], results[1], "1 and 3 threads");
}

TEST_P(CudaOpCaseTest, CudaAgreesWithCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << CudaAbsence();
  const OpCase& op_case = GetParam();
  const double ulps = op_case.low_precision_ulps;
  for (auto [dtype, tolerance] : {std::pair(DType::kF64, 1e-12), std::pair(DType::kF32, 5e-6),
                                  std::pair(DType::kBF16, ulps * 0x1p-8), std::pair(DType::kF16, ulps * 0x1p-11)}) {
    if (IsLowPrecision(dtype) && !op_case.low_precision) continue;
    const std::vector<Tensor> inputs = MakeInputs(op_case, dtype);
    const Result expected = RunCudaCase(op_case, inputs);
    const OnGpu on_gpu;
    const std::vector<Tensor> on_device = AllTo(Cuda(), inputs);
    const Result got = RunCudaCase(op_case, on_device);
    ExpectNear(got, expected, tolerance, std::string(Name(dtype)));
    ExpectBitEqual(RunCudaCase(op_case, on_device), got, Str(Name(dtype), ", run again"));
  }
}

TEST_P(CudaOpCaseTest, CudaTakesTheLayoutsThatTheCpuTakes) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << CudaAbsence();
  const OpCase& op_case = GetParam();
  const std::vector<Tensor> inputs = MakeInputs(op_case, DType::kF64);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!IsFloating(inputs[i].dtype()) || inputs[i].rank() == 0 || inputs[i].numel() == 0) continue;
    std::vector<Result> expected;
    for (const Variant& variant : LayoutVariants(inputs[i], op_case.layouts)) {
      if (!variant.promised) continue;
      std::vector<Tensor> strided(inputs.begin(), inputs.end());
      strided[i] = variant.x;
      expected.push_back(RunCudaCase(op_case, strided));
    }
    const OnGpu on_gpu;
    const std::vector<Tensor> on_device = AllTo(Cuda(), inputs);
    size_t next = 0;
    for (const Variant& variant : LayoutVariants(on_device[i], op_case.layouts)) {
      if (!variant.promised) continue;
      std::vector<Tensor> strided = on_device;
      strided[i] = variant.x;
      ExpectNear(RunCudaCase(op_case, strided), expected[next++], 1e-12, Str("input ", i, ", ", variant.name));
    }
  }
}

}  // namespace tessera::testing
