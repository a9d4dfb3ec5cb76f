// SPDX-License-Identifier: Apache-2.0
// The life of a tape, whom it tells what, and what it refuses.
#include "autograd/tape.h"

#include <thread>

#include "autograd/elementwise.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "autograd/reduce.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

// Writes down what a manager would hear.
class Listener final : public TapeObserver {
 public:
  void OnEnter(ScopeOwner& scope, Phase phase) override { Say("enter ", scope, phase); }
  void OnExit(ScopeOwner& scope, Phase phase) noexcept override { Say("exit ", scope, phase); }
  void OnBackwardBegin(std::span<ParamSource* const>) override { events += "begin; "; }
  void OnBackwardEnd() override { events += "end; "; }
  void OnDiscard(bool in_backward) noexcept override { events += in_backward ? "aborted; " : "discarded; "; }
  std::string events;

 private:
  void Say(const char* what, ScopeOwner& scope, Phase phase) {
    events += what + scope.scope_path() + " " + std::string(Name(phase)) + "; ";
  }
};

class TestScope final : public ScopeOwner {
 public:
  TestScope(std::string path, TapeObserver* observer) : path_(std::move(path)), observer_(observer) {}
  const std::string& scope_path() const override { return path_; }
  TapeObserver* observer() override { return observer_; }

 private:
  std::string path_;
  TapeObserver* observer_;
};

TEST(Tape, RecordsNothingWithoutBeingOpen) {
  TestParameter w("w", RandomTensor("w", {3}, -1, 1, DType::kF32), DType::kF32);
  const int64_t before = CpuAllocator().stats().bytes;
  const Tensor y = Sum(Square(ParamRef(&w)));
  EXPECT_FALSE(y.tracked());
  EXPECT_EQ(CpuAllocator().stats().bytes - before, y.bytes());
}

TEST(Tape, AddsTheGradientsOfAllUses) {
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {4}));
  const Tensor y = Add(Mul(x, x), Scale(x, 3));  // x appears three times
  tape.Backward(Sum(y));
  const Tensor grad = tape.Grad(x);
  for (int64_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(grad.At(i), 2 * x.At(i) + 3);
}

TEST(Tape, FreesEverythingOnBackward) {
  const Tensor x = RandomTensor("x", {1000});
  const int64_t before = CpuAllocator().stats().bytes;
  {
    Tape tape;
    Tensor y = tape.Watch(x);
    for (int i = 0; i < 5; ++i) y = Square(y);
    Tensor loss = Sum(y);
    y = Tensor();
    EXPECT_GE(CpuAllocator().stats().bytes - before, 4 * x.bytes());
    tape.Backward(loss);
    loss = Tensor();
    EXPECT_EQ(tape.node_count(), 0);
    EXPECT_EQ(CpuAllocator().stats().bytes - before, x.bytes());  // the watched leaf's gradient
  }
  EXPECT_EQ(CpuAllocator().stats().bytes, before);
}

TEST(Tape, BackwardWithoutOneIsAnErrorWithASentence) {
  EXPECT_EQ(ErrorOf([] { Backward(RandomTensor("x", {1})); }),
            "backward: no tape is open on this thread; open a Tape before forward");
}

TEST(Tape, RefusesASecondOpenTape) {
  Tape tape;
  EXPECT_NE(ErrorOf([] { Tape second; }).find("another tape is open"), std::string::npos);
}

TEST(Tape, RefusesALossThatNothingTrackedLedTo) {
  Tape tape;
  EXPECT_NE(ErrorOf([&] { tape.Backward(Sum(RandomTensor("x", {2}))); }).find("not tracked by this tape"),
            std::string::npos);
}

TEST(Tape, RefusesATensorOfASpentTape) {
  Tensor y;
  {
    Tape tape;
    y = Square(tape.Watch(RandomTensor("x", {2})));
    tape.Backward(Sum(y));
  }
  EXPECT_NO_THROW(Square(y));  // without a tape it is a value like any other
  Tape tape;
  EXPECT_NE(ErrorOf([&] { Square(y); }).find("belongs to another tape"), std::string::npos);
  EXPECT_NO_THROW(Square(y.Detach()));
}

TEST(Tape, NoGradPausesRecording) {
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {2}));
  {
    const NoGrad pause;
    EXPECT_FALSE(Square(x).tracked());
  }
  EXPECT_TRUE(Square(x).tracked());
}

TEST(Tape, OneThreadsTapeIsInvisibleToAnother) {
  Tape tape;
  std::thread([] { EXPECT_EQ(Tape::Current(), nullptr); }).join();
  EXPECT_EQ(Tape::Current(), &tape);
}

TEST(Tape, ParameterIsReadyOnceAfterItsLastUse) {
  TestParameter w1("w1", RandomTensor("w1", {2}), DType::kF64), w2("w2", RandomTensor("w2", {2}), DType::kF64);
  Tape tape;
  const Tensor x = RandomTensor("x", {2});
  // Two forwards with different used weights, one backward.
  const Tensor y1 = Mul(x, ParamRef(&w1)), y2 = Mul(Mul(x, ParamRef(&w2)), ParamRef(&w1));
  tape.Backward(Sum(Add(y1, y2)));
  EXPECT_EQ(w1.ready_count, 1);
  EXPECT_EQ(w1.target_count, 2);
  EXPECT_EQ(w2.ready_count, 1);
  for (int64_t i = 0; i < 2; ++i) EXPECT_DOUBLE_EQ(w1.grad().At(i), x.At(i) + x.At(i) * w2.Data().At(i));
}

TEST(Tape, ParameterThatNoGradientReachesIsReadyToo) {
  TestParameter used("used", RandomTensor("a", {2}), DType::kF64), lost("lost", RandomTensor("b", {2}), DType::kF64);
  Tape tape;
  const Tensor unused = Square(ParamRef(&lost));
  tape.Backward(Sum(Square(ParamRef(&used))));
  EXPECT_EQ(lost.ready_count, 1);
  EXPECT_EQ(lost.target_count, 0);
}

TEST(Tape, FrozenParameterPassesGradientOnAndTakesNone) {
  TestParameter w("w", RandomTensor("w", {3, 2}), DType::kF64);
  w.SetRequiresGrad(false);
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {4, 2}));
  tape.Backward(Sum(Linear(x, ParamRef(&w))));
  EXPECT_TRUE(tape.Grad(x).defined());
  EXPECT_EQ(w.ready_count, 0);
  EXPECT_EQ(w.target_count, 0);
}

TEST(Tape, BackwardAsksForDataOnlyWhereANodeNeedsIt) {
  TestParameter table("table", RandomTensor("t", {5, 2}), DType::kF64),
      bias("bias", RandomTensor("b", {3}), DType::kF64), weight("weight", RandomTensor("w", {3, 2}), DType::kF64);
  Tape tape;
  const Tensor ids = Tensor::From<int64_t>({4, 0}, {2});
  const Tensor y = Linear(Embedding(ParamRef(&table), ids), ParamRef(&weight), ParamRef(&bias));
  const int table_before = table.data_count, bias_before = bias.data_count, weight_before = weight.data_count;
  tape.Backward(Sum(y));
  EXPECT_EQ(table.data_count, table_before);
  EXPECT_EQ(bias.data_count, bias_before);
  EXPECT_EQ(weight.data_count, weight_before + 1);
}

TEST(Tape, GradientThroughAViewZeroFillsTheRest) {
  TestParameter w("w", RandomTensor("w", {4, 3}), DType::kF64);
  Tape tape;
  tape.Backward(Sum(Scale(ParamRef(&w).Narrow(0, 1, 2), 5)));
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_EQ(w.grad().At(row, column), row == 1 || row == 2 ? 5 : 0) << row << ", " << column;
    }
  }
}

TEST(Tape, GradientThroughATransposedViewLandsWhereItBelongs) {
  TestParameter w("w", RandomTensor("w", {2, 3}), DType::kF64);
  const Tensor x = RandomTensor("x", {5, 2});  // x (5, 2), w^T (3, 2)
  Tape tape;
  tape.Backward(Sum(Linear(x, ParamRef(&w).Transpose(0, 1))));
  for (int64_t in = 0; in < 2; ++in) {
    double column_sum = 0;
    for (int64_t row = 0; row < 5; ++row) column_sum += x.At(row, in);
    for (int64_t out = 0; out < 3; ++out) EXPECT_NEAR(w.grad().At(in, out), column_sum, 1e-14);
  }
}

TEST(Tape, RefusesToSaveAPlainTensorInParameterStorage) {
  class Label final : public StorageLabel {
    std::string ParameterAt(int64_t) const override { return "blocks.1.weight"; }
  } label;
  const Tensor w = RandomTensor("w", {3});
  w.storage()->SetLabel(&label);
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {3}));
  const std::string error = ErrorOf([&] { Mul(x, w); });
  EXPECT_NE(error.find("blocks.1.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("pass the Parameter itself"), std::string::npos) << error;
}

TEST(Tape, TellsScopesInForwardAndInReverse) {
  Listener listener;
  TestScope outer("net", &listener), a("net.a", &listener), b("net.b", &listener);
  Tape tape;
  Tensor loss;
  {
    const ScopeGuard in_outer(outer);
    Tensor x = tape.Watch(RandomTensor("x", {2}));
    {
      const ScopeGuard in_a(a);
      x = Square(x);
    }
    {
      const ScopeGuard in_b(b);
      x = Square(x);
    }
    loss = Sum(x);
  }
  EXPECT_EQ(listener.events,
            "enter net forward; enter net.a forward; exit net.a forward; enter net.b forward; exit net.b forward; "
            "exit net forward; ");
  listener.events.clear();
  tape.Backward(loss);
  EXPECT_EQ(listener.events,
            "begin; enter net backward; enter net.b backward; exit net.b backward; enter net.a backward; "
            "exit net.a backward; exit net backward; end; ");
}

TEST(Tape, AnExceptionInForwardLeavesScopesAndDiscards) {
  Listener listener;
  TestScope scope("net", &listener);
  try {
    Tape tape;
    const ScopeGuard guard(scope);
    Square(tape.Watch(RandomTensor("x", {2})));
    throw Error("broken layer");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "net: broken layer");
  }
  EXPECT_EQ(listener.events, "enter net forward; exit net forward; discarded; ");
  EXPECT_NO_THROW(Tape());  // the thread can open the next one
}

TEST(Tape, AnExceptionInBackwardLeavesScopesAndAborts) {
  Listener listener;
  TestScope scope("net", &listener);
  TestParameter w("w", RandomTensor("w", {2}), DType::kF64);
  Tape tape;
  Tensor loss, saved = RandomTensor("x", {2});
  {
    const ScopeGuard guard(scope);
    loss = Sum(Mul(saved, ParamRef(&w)));
  }
  saved.Write();  // counts as a modification in place
  listener.events.clear();
  const std::string error = ErrorOf([&] { tape.Backward(loss); });
  EXPECT_NE(error.find("net: "), std::string::npos) << error;
  EXPECT_NE(error.find("modified in place"), std::string::npos) << error;
  EXPECT_EQ(listener.events, "begin; enter net backward; exit net backward; aborted; ");
  EXPECT_NE(ErrorOf([&] { tape.Backward(loss); }).find("already freed"), std::string::npos);
  // The parameter's count of open uses was put back: the next tape is not confused by the last one.
  Tape next;
  next.Backward(Sum(Square(ParamRef(&w))));
  EXPECT_EQ(w.ready_count, 1);
}

TEST(Tape, GradientsOfSeveralOutputsAtOnce) {
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {3}));
  const Tensor outputs[] = {Scale(x, 2), Scale(x, 5)};
  const Tensor seeds[] = {Full({3}, DType::kF64, 1), Full({3}, DType::kF64, 10)};
  tape.Backward(outputs, seeds);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(tape.Grad(x).At(i), 52);
}

TEST(Tape, RefusesAGradientOfAnotherShape) {
  Tape tape;
  const Tensor y = Square(tape.Watch(RandomTensor("x", {3})));
  EXPECT_NE(ErrorOf([&] { tape.Backward(y, RandomTensor("dy", {2})); }).find("must have the output's shape"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
