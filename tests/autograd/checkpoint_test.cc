// SPDX-License-Identifier: Apache-2.0
#include "autograd/checkpoint.h"

#include "autograd/custom.h"
#include "autograd/dropout.h"
#include "autograd/elementwise.h"
#include "autograd/linear.h"
#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "tensor/context.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

struct TwoLayers {
  TestParameter w1{"w1", RandomTensor("w1", {8, 8}), DType::kF64}, w2{"w2", RandomTensor("w2", {8, 8}), DType::kF64};
  Tensor operator()(const Tensor& x) {
    const Tensor h = Tanh(Linear(x, ParamRef(&w1)));
    return Linear(Dropout(h, 0.4, CurrentContext().NextRandomKey("drop")), ParamRef(&w2));
  }
};

struct Trace {
  Tensor y, dx, dw1, dw2;
  uint64_t random_calls;
};

Trace RunLayers(int depth, bool checkpoint) {
  CurrentContext().BeginMicroStep(3, 1);
  TwoLayers layers;
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {5, 8}));
  Tensor y = x;
  for (int i = 0; i < depth; ++i) {
    y = checkpoint ? Checkpoint([&](const Tensor& in) { return layers(in); }, y) : layers(y);
  }
  Trace trace{.y = y.Detach(), .dx = {}, .dw1 = {}, .dw2 = {}, .random_calls = 0};
  tape.Backward(Sum(Square(y)));
  trace.dx = tape.Grad(x);
  trace.dw1 = layers.w1.grad();
  trace.dw2 = layers.w2.grad();
  trace.random_calls = CurrentContext().random_calls;
  EXPECT_EQ(layers.w1.ready_count, 1);
  EXPECT_EQ(layers.w2.ready_count, 1);
  return trace;
}

TEST(Checkpoint, HasTheBitsOfThePlainRunMasksIncluded) {
  const Trace plain = RunLayers(3, false), checkpointed = RunLayers(3, true);
  EXPECT_TRUE(BitEqual(plain.y, checkpointed.y));
  EXPECT_TRUE(BitEqual(plain.dx, checkpointed.dx));
  EXPECT_TRUE(BitEqual(plain.dw1, checkpointed.dw1));
  EXPECT_TRUE(BitEqual(plain.dw2, checkpointed.dw2));
  EXPECT_EQ(plain.random_calls, checkpointed.random_calls);
}

TEST(Checkpoint, KeepsOnlyItsInputs) {
  TestParameter w("w", RandomTensor("w", {64, 64}), DType::kF64);
  const auto alive_after_forward = [&](bool checkpoint) {
    Tape tape;
    Tensor x = tape.Watch(RandomTensor("x", {100, 64}));
    const int64_t before = CpuAllocator().stats().bytes;
    const auto chain = [&](const Tensor& in) {
      Tensor y = in;
      for (int i = 0; i < 10; ++i) y = Tanh(Linear(y, ParamRef(&w)));
      return y;
    };
    const Tensor y = checkpoint ? Checkpoint(chain, x) : chain(x);
    return CpuAllocator().stats().bytes - before;
  };
  EXPECT_EQ(alive_after_forward(true), 100 * 64 * 8);  // the output alone
  EXPECT_GE(alive_after_forward(false), 10 * 100 * 64 * 8);
}

TEST(Checkpoint, NestsWithTheSameBits) {
  TwoLayers layers;
  const auto run = [&](bool nested) {
    CurrentContext().BeginMicroStep(1, 0);
    Tape tape;
    const Tensor x = tape.Watch(RandomTensor("x", {2, 8}));
    const auto inner = [&](const Tensor& in) { return layers(in); };
    const auto outer = [&](const Tensor& in) {
      return nested ? Checkpoint(inner, Checkpoint(inner, in)) : inner(inner(in));
    };
    tape.Backward(Sum(Checkpoint(outer, x)));
    return tape.Grad(x);
  };
  EXPECT_TRUE(BitEqual(run(false), run(true)));
  EXPECT_EQ(layers.w1.ready_count, 2);  // one for each of the two backward passes
}

TEST(Checkpoint, RefusesACapturedTrackedTensor) {
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {2})), other = tape.Watch(RandomTensor("o", {2}));
  const std::string error = ErrorOf([&] { Checkpoint([&](const Tensor& in) { return Mul(in, other); }, x); });
  EXPECT_NE(error.find("captured a tracked tensor"), std::string::npos) << error;
  EXPECT_NO_THROW(Checkpoint([](const Tensor& a, const Tensor& b) { return Mul(a, b); }, x, other));
}

TEST(Checkpoint, OfParametersAloneIsRecorded) {
  TestParameter w("w", RandomTensor("w", {3}), DType::kF64);
  Tape tape;
  const Tensor x = RandomTensor("x", {3});
  tape.Backward(Sum(Checkpoint([&](const Tensor& in) { return Mul(in, ParamRef(&w)); }, x)));
  EXPECT_TRUE(BitEqual(w.grad(), x));
}

TEST(Checkpoint, ThatNoGradientReachesReleasesItsParameters) {
  TestParameter w("w", RandomTensor("w", {3}), DType::kF64), used("used", RandomTensor("u", {3}), DType::kF64);
  Tape tape;
  Checkpoint([&](const Tensor& in) { return Mul(in, ParamRef(&w)); }, RandomTensor("x", {3}));
  tape.Backward(Sum(Square(ParamRef(&used))));
  EXPECT_EQ(w.ready_count, 1);
  EXPECT_EQ(w.target_count, 0);
}

TEST(Checkpoint, RefusesAFunctionThatChangesItsParameters) {
  TestParameter w("w", RandomTensor("w", {3}), DType::kF64);
  int calls = 0;
  const auto run = [&](bool grows) {
    calls = 0;
    Tape tape;
    const auto f = [&](const Tensor& in) {
      const bool twice = (calls++ == 0) != grows;
      const Tensor y = Mul(in, ParamRef(&w));
      return twice ? Mul(y, ParamRef(&w)) : y;
    };
    tape.Backward(Sum(Checkpoint(f, tape.Watch(RandomTensor("x", {3})))));
  };
  EXPECT_NE(ErrorOf([&] { run(true); }).find("more often than the first one"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { run(false); }).find("less often than the first one"), std::string::npos);
}

TEST(CustomFunction, PassesItsOwnGradientAndParametersByReference) {
  TestParameter w("w", RandomTensor("w", {4}), DType::kF64);
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {4}));
  const Tensor y = CustomFunction(
      "scaled_product", {x, ParamRef(&w)},
      [](SavedValues& save, std::span<const Tensor> in) {
        save.Keep(0);
        save.Keep(1);
        return Scale(Mul(in[0], in[1]), 2);
      },
      [](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        return {Scale(Mul(dy, saved[1]), 2), Scale(Mul(dy, saved[0]), 2)};
      });
  EXPECT_EQ(w.data_count, 1);
  tape.Backward(Sum(y));
  EXPECT_EQ(w.data_count, 2);  // asked for again, not kept
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(tape.Grad(x).At(i), 2 * w.Data().At(i));
    EXPECT_DOUBLE_EQ(w.grad().At(i), 2 * x.At(i));
  }
}

TEST(CustomFunction, NamesItselfInItsErrors) {
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {2}));
  const auto forward = [](SavedValues&, std::span<const Tensor> in) { return Scale(in[0], 1); };
  const Tensor none =
      CustomFunction("lazy", {x}, forward, [](const SavedValues&, const Tensor&) -> std::vector<Tensor> { return {}; });
  EXPECT_EQ(ErrorOf([&] { tape.Backward(Sum(none)); }), "lazy: backward returned 0 gradients for 1 inputs");
}

}  // namespace
}  // namespace tessera::testing
