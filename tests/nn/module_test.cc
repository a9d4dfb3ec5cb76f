// SPDX-License-Identifier: Apache-2.0
// The module tree, its units and the plain manager.
#include "nn/module.h"

#include <cmath>

#include "autograd/elementwise.h"
#include "autograd/linear.h"
#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/resident_manager.h"
#include "nn/units.h"
#include "optim/plain_optimizer.h"
#include "tests/support/op_case.h"
#include "tests/support/poisoning_manager.h"

namespace tessera::testing {
namespace {

using nn::Module;
using nn::ModuleList;
using nn::Parameter;
using nn::Place;
using nn::ResidentManager;

struct Mlp : nn::Layer<Mlp> {
  using Layer::Layer;
  nn::Linear up{this, "up", 4, 6}, down{this, "down", 6, 2};
  Parameter scale{this, "scale", {6}, nn::Init::Ones()};
  Tensor Forward(const Tensor& x) { return down(Mul(Relu(up(x)), scale)); }
};

struct Stack : nn::Layer<Stack> {
  explicit Stack(Place place = {.parent = nullptr, .name = "stack"}) : Layer(std::move(place)) {}
  nn::Embedding wte{this, "wte", 7, 4};
  ModuleList<Mlp> blocks{this, "blocks", 3};
  Parameter own{this, "own", {2}};
  nn::LayerNorm ln_f{this, "ln_f", 2};
};

std::vector<std::string> Names(const std::vector<nn::Unit>& units) {
  std::vector<std::string> names;
  for (const nn::Unit& unit : units) names.push_back(unit.name);
  return names;
}

TEST(Module, NamesParametersByPathWithoutTheRootsName) {
  Stack stack;
  std::vector<std::string> paths;
  for (const Parameter* parameter : stack.parameters()) paths.push_back(parameter->path());
  EXPECT_EQ(paths[0], "own");
  EXPECT_EQ(paths[1], "wte.weight");
  EXPECT_EQ(paths[2], "blocks.0.scale");
  EXPECT_EQ(paths[3], "blocks.0.up.weight");
  EXPECT_EQ(stack.blocks[2].up.scope_path(), "stack.blocks.2.up");
  EXPECT_EQ(stack.ParameterCount(), 28 + 2 + 3 * (4 * 6 + 6 + 6 * 2 + 2 + 6) + 4);
}

TEST(Module, FindsAParameterByPathOrSuggestsTheNearest) {
  Stack stack;
  EXPECT_EQ(&stack.parameter("blocks.1.up.weight"), &stack.blocks[1].up.weight);
  EXPECT_EQ(&stack.blocks[1].parameter("up.weight"), &stack.blocks[1].up.weight);
  EXPECT_EQ(ErrorOf([&] { stack.parameter("block.1.up.weight"); }),
            "parameter: no parameter 'block.1.up.weight'; did you mean 'blocks.1.up.weight'?");
}

TEST(Module, RefusesADoubleName) {
  struct Twice : nn::Layer<Twice> {
    nn::Linear a{this, "fc", 2, 2}, b{this, "fc", 2, 2};
  };
  EXPECT_EQ(ErrorOf([] { Twice(); }), "module: the root already has a child or parameter named 'fc'");
}

TEST(Module, PutsThePathInFrontOfAnError) {
  Stack stack;
  ResidentManager params(stack);
  EXPECT_EQ(ErrorOf([&] {
              stack.blocks[1](RandomTensor("x", {3, 5}, -1, 1, DType::kF32));
            }).rfind("stack.blocks.1.up: linear: ", 0),
            0u);
}

TEST(Module, ADeclaredModelTakesNoMemoryUntilItIsAdopted) {
  const int64_t before = CpuAllocator().stats().bytes;
  struct Huge : nn::Layer<Huge> {
    nn::Linear fc{this, "fc", 1 << 20, 1 << 20};
  } huge;
  EXPECT_EQ(huge.ParameterCount(), (int64_t{1} << 40) + (1 << 20));
  EXPECT_EQ(CpuAllocator().stats().bytes, before);
  EXPECT_NE(ErrorOf([&] { huge.fc.weight.Data(); }).find("parameter 'fc.weight' has no data yet"), std::string::npos);
}

TEST(Module, AdoptsATreeOnceAndFreezesItsShape) {
  Stack stack;
  ResidentManager params(stack);
  EXPECT_NE(ErrorOf([&] { ResidentManager second(stack); }).find("already has a manager"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { stack.blocks[0].up.weight.SetRequiresGrad(false); }).find("before a manager adopts"),
            std::string::npos);
}

TEST(Units, EachMaximalSubtreeWithoutAListIsOne) {
  Stack stack;
  EXPECT_EQ(Names(FindUnits(stack, {.tiny_numel = 0})),
            (std::vector<std::string>{"", "wte", "blocks.0", "blocks.1", "blocks.2", "ln_f"}));
  struct Wrapper : nn::Layer<Wrapper> {
    Stack inner{Place{this, "model"}};
  } wrapped;
  EXPECT_EQ(Names(FindUnits(wrapped, {.tiny_numel = 0})),
            (std::vector<std::string>{"model", "model.wte", "model.blocks.0", "model.blocks.1", "model.blocks.2",
                                      "model.ln_f"}));
  Mlp mlp;
  EXPECT_EQ(Names(FindUnits(mlp, {.tiny_numel = 0})), (std::vector<std::string>{""}));
}

TEST(Units, TinyNeighboursMergeAndSetUnitSplits) {
  Stack stack;
  // own (2) and wte (28) are tiny; the blocks (50 each) are not; ln_f (4) has no tiny neighbour before it.
  EXPECT_EQ(Names(FindUnits(stack, {.tiny_numel = 40})),
            (std::vector<std::string>{"", "blocks.0", "blocks.1", "blocks.2", "ln_f"}));
  stack.blocks[1].down.SetUnit();
  EXPECT_EQ(Names(FindUnits(stack, {.tiny_numel = 0})),
            (std::vector<std::string>{"", "wte", "blocks.0", "blocks.1", "blocks.1.down", "blocks.2", "ln_f"}));
  stack.SetUnit();
  EXPECT_EQ(Names(FindUnits(stack, {.tiny_numel = 0})), (std::vector<std::string>{"", "blocks.1.down"}));
}

TEST(Init, DependsOnSeedPathAndElementAlone) {
  const auto draw = [](uint64_t seed, const char* path, int64_t begin, int64_t count) {
    Tensor out = Empty({count}, DType::kF32);
    nn::FillInit(nn::Init::Normal(0.02), seed, path, begin, out);
    return out;
  };
  const Tensor whole = draw(5, "a.weight", 0, 1000), part = draw(5, "a.weight", 333, 100);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(part.At(i), whole.At(333 + i));
  EXPECT_FALSE(BitEqual(whole, draw(6, "a.weight", 0, 1000)));
  EXPECT_FALSE(BitEqual(whole, draw(5, "b.weight", 0, 1000)));
  double sum = 0, squares = 0;
  for (double v : whole.ToVector()) {
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / 1000, 0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / 1000), 0.02, 0.0015);
}

TEST(Init, LinearHasPyTorchsBounds) {
  Mlp mlp;
  ResidentManager params(mlp, {.seed = 3});
  double largest = 0;
  for (double v : mlp.up.weight.Data().ToVector()) largest = std::max(largest, std::abs(v));
  EXPECT_LE(largest, 0.5);  // 1/sqrt(4)
  EXPECT_GT(largest, 0.4);
}

TEST(ResidentManager, TrainsAPlainLoop) {
  Mlp mlp;
  ResidentManager params(mlp, {.seed = 1});
  const Tensor x = RandomTensor("x", {16, 4}, -1, 1, DType::kF32);
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    Tape tape;
    const Tensor loss = Mean(Square(AddScalar(mlp(x), -0.5)));
    (step == 0 ? first : last) = loss.Item();
    tape.Backward(loss);
    for (const ParamRange& range : params.FinishGradients()) {
      float* p = range.param.Write().as<float>();
      const float* g = range.grad.Read().as<float>();
      for (int64_t i = 0; i < range.param.numel(); ++i) p[i] -= 0.2f * g[i];
    }
  }
  EXPECT_LT(last, 0.2 * first);
}

TEST(ResidentManager, AccumulatesUntilTheWindowCloses) {
  Mlp mlp;
  ResidentManager params(mlp, {.dtype = DType::kF64});
  const auto backward = [&] {
    Tape tape;
    tape.Backward(Sum(mlp(RandomTensor("x", {3, 4}))));
  };
  backward();
  const Tensor once = CopyTo(params.Gradient(mlp.down.bias.value()), DType::kF64);
  backward();
  EXPECT_EQ(params.Gradient(*mlp.down.bias).At(0), 2 * once.At(0));
  params.FinishGradients();
  backward();
  EXPECT_TRUE(BitEqual(params.Gradient(*mlp.down.bias), once));
}

TEST(ResidentManager, GivesZerosToParametersThatNoGradientReached) {
  Mlp mlp;
  ResidentManager params(mlp);
  {
    Tape tape;
    tape.Backward(Sum(mlp(RandomTensor("x", {3, 4}, -1, 1, DType::kF32))));
  }
  params.FinishGradients();
  {
    Tape tape;
    tape.Backward(Sum(mlp.up(RandomTensor("x", {3, 4}, -1, 1, DType::kF32))));
  }
  params.FinishGradients();
  for (double v : params.Gradient(mlp.down.weight).ToVector()) EXPECT_EQ(v, 0);
  EXPECT_NE(params.Gradient(mlp.up.weight).At(0, 0), 0);
}

TEST(ResidentManager, CutsRangesWhereDecayChangesAndLeavesFrozenOnesOut) {
  Mlp mlp;
  mlp.up.bias->SetNoDecay();
  mlp.down.SetRequiresGrad(false);
  ResidentManager params(mlp);
  std::vector<std::string> ranges;
  for (const ParamRange& range : params.ranges())
    ranges.push_back(range.first_path + (range.decay ? " decay" : " plain"));
  EXPECT_EQ(ranges, (std::vector<std::string>{"scale decay", "up.bias plain"}));
}

TEST(ResidentManager, FrozenParametersKeepTheirBytesAndHaveNoState) {
  Mlp mlp;
  mlp.up.SetRequiresGrad(false);
  ResidentManager params(mlp, {.seed = 2});
  optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{.lr = 0.1, .weight_decay = 0.5}),
                                  params.ranges());
  const Tensor before = CopyTo(mlp.up.weight.Data(), DType::kF32), moved = CopyTo(mlp.down.weight.Data(), DType::kF32);
  double squares = 0;
  for (int step = 0; step < 10; ++step) {
    Tape tape;
    tape.Backward(Mean(Square(mlp(RandomTensor("x", {8, 4}, -1, 1, DType::kF32)))));
    const std::vector<ParamRange>& ranges = params.FinishGradients();
    squares = 0;
    for (nn::Parameter* parameter : mlp.parameters()) {
      if (!parameter->requires_grad()) continue;
      for (double g : params.Gradient(*parameter).ToVector()) squares += g * g;
    }
    optimizer.Step(ranges);
  }
  EXPECT_TRUE(BitEqual(mlp.up.weight.Data(), before));
  EXPECT_FALSE(BitEqual(mlp.down.weight.Data(), moved));
  EXPECT_NEAR(optimizer.grad_norm(), std::sqrt(squares), 1e-6);
  EXPECT_LT(optimizer.state_bytes(), 2 * 4 * (mlp.TrainableParameterCount() + 3 * 32));  // two moments, and the gaps
}

TEST(ResidentManager, ParametersWithoutElementsAreLegal) {
  struct Net : nn::Layer<Net> {
    nn::Linear full{this, "full", 4, 4}, empty{this, "empty", 4, 0, {.bias = false}};
    Tensor Forward(const Tensor& x) { return Add(Mean(Square(full(x))), Sum(empty(x))); }
  };
  struct Alone : nn::Layer<Alone> {
    nn::Linear full{this, "full", 4, 4};
    Tensor Forward(const Tensor& x) { return Mean(Square(full(x))); }
  };
  const auto train = [](auto& net) {
    ResidentManager params(net, {.seed = 4});
    optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{}), params.ranges());
    for (int step = 0; step < 3; ++step) {
      Tape tape;
      tape.Backward(net(RandomTensor("x", {2, 4}, -1, 1, DType::kF32)));
      optimizer.Step(params.FinishGradients());
    }
    return CopyTo(net.full.weight.Data(), DType::kF32);
  };
  Net net;
  Alone alone;
  EXPECT_TRUE(BitEqual(train(net), train(alone)));
  EXPECT_EQ(net.empty.weight.shape(), Shape({0, 4}));
}

TEST(ResidentManager, NamesTheParameterOfAStrayView) {
  Mlp mlp;
  ResidentManager params(mlp);
  Tape tape;
  const Tensor x = tape.Watch(RandomTensor("x", {2, 4}, -1, 1, DType::kF32));
  const std::string error = ErrorOf([&] {
    Mul(x, mlp.up.weight.Data().WithLayout(Layout({2, 4}, {4, 1}, mlp.up.weight.Data().layout().offset())));
  });
  EXPECT_NE(error.find("parameter 'up.weight'"), std::string::npos) << error;
}

TEST(ResidentManager, EditChangesTheData) {
  Mlp mlp;
  ResidentManager params(mlp);
  mlp.scale.Edit([](Tensor& data) { data.Write().as<float>()[2] = 42; });
  EXPECT_EQ(mlp.scale.Gather().data().At(2), 42);
}

TEST(PoisoningManager, RefusesAReadOutsideItsScope) {
  Mlp mlp;
  PoisoningManager params(mlp);
  const std::string error = ErrorOf([&] { mlp.up.weight.Data(); });
  EXPECT_NE(error.find("parameter 'up.weight' is not gathered"), std::string::npos) << error;
  EXPECT_NE(error.find("Gather()"), std::string::npos) << error;
  const nn::ParamLease lease = mlp.up.weight.Gather();
  EXPECT_NO_THROW(lease.data());
}

TEST(PoisoningManager, AFunctionThatReadsAForeignParameterMustSayUses) {
  struct Tied : nn::Layer<Tied> {
    explicit Tied(bool say) {
      if (say) head.Uses(body.weight);
    }
    struct Head : nn::Layer<Head> {
      using Layer::Layer;
      Parameter* weight = nullptr;
      Tensor Forward(const Tensor& x) { return Linear(x, *weight); }
    };
    nn::Linear body{this, "body", 3, 3};
    Head head{this, "head"};
    Tensor Forward(const Tensor& x) {
      head.weight = &body.weight;
      return head(body(x));
    }
  };
  const Tensor x = RandomTensor("x", {2, 3}, -1, 1, DType::kF32);
  Tied silent(false), honest(true);
  {
    PoisoningManager params(silent);
    EXPECT_NE(ErrorOf([&] { silent(x); }).find("'body.weight' is not gathered"), std::string::npos);
    EXPECT_EQ(params.alive_gathers(), 0);  // scopes were left on the way out
  }
  PoisoningManager params(honest);
  Tape tape;
  tape.Backward(Sum(honest(x)));
  EXPECT_EQ(params.ready_count(honest.body.weight), 1);
  EXPECT_EQ(params.alive_gathers(), 0);
}

}  // namespace
}  // namespace tessera::testing
