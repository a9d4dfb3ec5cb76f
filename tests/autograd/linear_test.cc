// SPDX-License-Identifier: Apache-2.0
#include "autograd/linear.h"

#include "autograd/elementwise.h"
#include "autograd/tape.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<Tensor> RunLinear(std::span<const Input> in) {
  return {Linear(in[0], in[1], in.size() > 2 ? in[2] : Input())};
}

std::vector<Tensor> RunLinearGelu(std::span<const Input> in) {
  return {LinearGelu(in[0], in[1], in.size() > 2 ? in[2] : Input())};
}

std::vector<Tensor> LinearThenGelu(std::span<const Input> in) {
  return {Gelu(Linear(in[0], in[1], in.size() > 2 ? in[2] : Input()), GeluKind::kTanh)};
}

std::vector<OpCase> LinearCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const std::string& name, const Shape& x, int64_t out, bool bias) {
    for (bool gelu : {false, true}) {
      OpCase op_case{.name = name + (gelu ? "Gelu" : ""), .inputs = {{x}, {{out, x.back()}}}};
      if (bias) op_case.inputs.push_back({{out}});
      op_case.run = gelu ? RunLinearGelu : RunLinear;
      if (gelu) op_case.composition = LinearThenGelu;
      // With one leading dim any row stride will do; several must be readable as one.
      op_case.layouts = x.rank() <= 2 ? Layouts::kDenseRows : Layouts::kContiguous;
      op_case.cuda = gelu ? OnCuda::kForward : OnCuda::kForwardAndBackward;  // GELU's gradient is unary's
      cases.push_back(op_case);
    }
  };
  add("Matrix", {5, 7}, 3, true);
  add("NoBias", {5, 7}, 3, false);
  add("Batch", {2, 3, 4}, 6, true);
  add("OneElement", {1, 1}, 1, true);
  add("Vector", {4}, 3, true);
  add("NoRows", {0, 4}, 3, true);
  add("NoInputs", {3, 0}, 2, true);
  add("NoOutputs", {3, 4}, 0, true);
  add("OverSeveralTiles", {70, 130}, 67, true);
  return cases;
}

TESSERA_OP_CASES(Linear, LinearCases());

std::vector<OpCase> MatmulCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& a, const Shape& b) {
    const bool broadcasts = std::string_view(name).starts_with("Broadcast");  // its gradient is summed by reduce
    cases.push_back({.name = name,
                     .inputs = {{a}, {b}},
                     .run = [](std::span<const Input> in) { return std::vector<Tensor>{Matmul(in[0], in[1])}; },
                     .cuda = broadcasts ? OnCuda::kForward : OnCuda::kForwardAndBackward});
  };
  add("Matrix", {4, 3}, {3, 5});
  add("Batch", {2, 4, 3}, {2, 3, 5});
  add("BroadcastLeft", {4, 3}, {2, 3, 5});
  add("BroadcastBoth", {2, 1, 4, 3}, {3, 3, 2});
  add("OneElement", {1, 1}, {1, 1});
  add("NoRows", {0, 3}, {3, 2});
  add("NoInner", {2, 0}, {0, 3});
  add("NoBatch", {0, 2, 3}, {0, 3, 2});
  add("OverSeveralTiles", {65, 97}, {97, 71});
  return cases;
}

TESSERA_OP_CASES(Matmul, MatmulCases());

TEST(Linear, KeepsTheInputOnlyForTheWeightAndTheWeightOnlyForTheInput) {
  const Tensor x = RandomTensor("x", {2, 3});
  TestParameter frozen("frozen", RandomTensor("w", {4, 3}), DType::kF64);
  frozen.SetRequiresGrad(false);
  Tape tape;
  const Tensor y = Linear(tape.Watch(x), ParamRef(&frozen));
  const Tensor kept = x;
  x.Write();  // nobody keeps x, so changing it harms no one
  EXPECT_NO_THROW(tape.Backward(y, RandomTensor("dy", {2, 4})));
}

TEST(Linear, ErrorsNameTheShapes) {
  const Tensor x = RandomTensor("x", {2, 31}), w = RandomTensor("w", {4, 32});
  const std::string error = ErrorOf([&] { Linear(x, w); });
  EXPECT_NE(error.find("linear: "), std::string::npos) << error;
  EXPECT_NE(error.find("31"), std::string::npos) << error;
  EXPECT_NE(error.find("32"), std::string::npos) << error;
  EXPECT_NE(ErrorOf([&] { Matmul(x, w); }).find("matmul: "), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
