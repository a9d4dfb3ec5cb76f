// SPDX-License-Identifier: Apache-2.0
#include "autograd/norm.h"

#include "autograd/custom.h"
#include "tensor/ops/copy.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

struct NormShape {
  const char* name;
  Shape x;
};
const NormShape kShapes[] = {{"Rows", {3, 8}},        {"OneElement", {1, 1}}, {"OddWidth", {2, 3, 37}},
                             {"ManyRows", {150, 5}},  {"Wide", {3, 130}},     {"NoRows", {0, 4}},
                             {"NoMiddle", {2, 0, 4}}, {"NoColumns", {3, 0}}};

Tensor PlainAdd(const Input& a, const Input& b) {
  return CustomFunction(
      "plain_add", {a, b},
      [](SavedValues&, std::span<const Tensor> in) {
        Tensor y = CopyTo(in[0], in[0].dtype());
        ops::Copy({.x = in[1].Read(), .out = y.Write(), .accumulate = true});
        return y;
      },
      [](const SavedValues&, const Tensor& dy) -> std::vector<Tensor> {
        return {dy, dy};
      });
}

std::vector<Tensor> Both(const SumAndNorm& result) { return {result.sum, result.normed}; }

OpInput WeightFor(const Shape& x) { return {{x.back()}, 0.5, 1.5}; }

std::vector<OpCase> RmsNormCases() {
  std::vector<OpCase> cases;
  for (const NormShape& shape : kShapes) {
    cases.push_back({.name = shape.name,
                     .inputs = {{shape.x}, WeightFor(shape.x)},
                     .run = [](std::span<const Input> in) { return std::vector<Tensor>{RmsNorm(in[0], in[1], 1e-5)}; },
                     .layouts = Layouts::kDenseRows,
                     .cuda = OnCuda::kForwardAndBackward});
  }
  return cases;
}

std::vector<OpCase> AddRmsNormCases() {
  std::vector<OpCase> cases;
  for (const NormShape& shape : kShapes) {
    cases.push_back({.name = shape.name,
                     .inputs = {{shape.x}, {shape.x}, WeightFor(shape.x)},
                     .run = [](std::span<const Input> in) { return Both(AddRmsNorm(in[0], in[1], in[2], 1e-5)); },
                     .composition =
                         [](std::span<const Input> in) {
                           const Tensor sum = PlainAdd(in[0], in[1]);
                           return std::vector<Tensor>{sum, RmsNorm(sum, in[2], 1e-5)};
                         },
                     .layouts = Layouts::kDenseRows,
                     .cuda = OnCuda::kForwardAndBackward});
  }
  return cases;
}

// Rows of one element have a variance of 0, where eps alone is left: an eps of order 1 keeps the derivatives of
// order 1.
std::vector<OpCase> LayerNormCases(bool with_bias) {
  std::vector<OpCase> cases;
  for (const NormShape& shape : kShapes) {
    OpCase op_case{.name = shape.name,
                   .inputs = {{shape.x}, WeightFor(shape.x)},
                   .run =
                       [](std::span<const Input> in) {
                         return std::vector<Tensor>{LayerNorm(in[0], in[1], in.size() > 2 ? in[2] : Input(), 1e-2)};
                       },
                   .layouts = Layouts::kDenseRows};
    if (with_bias) op_case.inputs.push_back({{shape.x.back()}});
    cases.push_back(op_case);
  }
  return cases;
}

std::vector<OpCase> AddLayerNormCases() {
  std::vector<OpCase> cases;
  for (const NormShape& shape : kShapes) {
    cases.push_back(
        {.name = shape.name,
         .inputs = {{shape.x}, {shape.x}, WeightFor(shape.x), {{shape.x.back()}}},
         .run = [](std::span<const Input> in) { return Both(AddLayerNorm(in[0], in[1], in[2], in[3], 1e-2)); },
         .composition =
             [](std::span<const Input> in) {
               const Tensor sum = PlainAdd(in[0], in[1]);
               return std::vector<Tensor>{sum, LayerNorm(sum, in[2], in[3], 1e-2)};
             },
         .layouts = Layouts::kDenseRows});
  }
  return cases;
}

TESSERA_OP_CASES(RmsNorm, RmsNormCases());
TESSERA_OP_CASES(AddRmsNorm, AddRmsNormCases());
TESSERA_OP_CASES(LayerNorm, LayerNormCases(true));
TESSERA_OP_CASES(LayerNormWithoutBias, LayerNormCases(false));
TESSERA_OP_CASES(AddLayerNorm, AddLayerNormCases());

TEST(RmsNorm, MatchesPyTorch) {
  ExpectMatchesGolden("rms_norm", {"x", "weight"},
                      [](std::span<const Input> in) { return std::vector<Tensor>{RmsNorm(in[0], in[1], 1e-5)}; });
}

TEST(LayerNorm, MatchesPyTorch) {
  ExpectMatchesGolden("layer_norm", {"x", "weight", "bias"}, [](std::span<const Input> in) {
    return std::vector<Tensor>{LayerNorm(in[0], in[1], in[2], 1e-5)};
  });
}

TEST(LayerNorm, KeepsItsDigitsFarFromZero) {
  // The sum of squares minus the squared sum would have no digit left here.
  const Tensor x = Tensor::From<float>({4096.0f, 4096.5f, 4097.0f, 4097.5f}, {1, 4});
  const Tensor ones = Full({4}, DType::kF32, 1.0);
  const std::vector<double> y = LayerNorm(x, ones, {}, 0.0).ToVector();
  EXPECT_NEAR(y[0], -1.3416408, 1e-6);
  EXPECT_NEAR(y[3], 1.3416408, 1e-6);
}

TEST(LayerNorm, OneTensorMayBeWeightAndBias) {
  const Tensor x = RandomTensor("x", {2, 4}), dy = RandomTensor("dy", {2, 4}), w = RandomTensor("w", {4});
  Tape apart;
  const Tensor weight = apart.Watch(w), bias = apart.Watch(w);
  apart.Backward(LayerNorm(x, weight, bias, 1e-5), dy);
  Tape tape;
  const Tensor both = tape.Watch(w);
  tape.Backward(LayerNorm(x, both, both, 1e-5), dy);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(tape.Grad(both).At(i), apart.Grad(weight).At(i) + apart.Grad(bias).At(i), 1e-14);
  }
}

// Only one of the two outputs leads to the loss.
TEST(AddRmsNorm, TakesTheGradientOfEitherOutputAlone) {
  const Tensor x = RandomTensor("x", {2, 4}), residual = RandomTensor("r", {2, 4}), dy = RandomTensor("dy", {2, 4});
  TestParameter weight("w", RandomTensor("w", {4}), DType::kF64);
  {
    Tape tape;
    const Tensor a = tape.Watch(x), b = tape.Watch(residual);
    tape.Backward(AddRmsNorm(a, b, ParamRef(&weight), 1e-5).sum, dy);
    EXPECT_TRUE(BitEqual(tape.Grad(a), dy));
    EXPECT_TRUE(BitEqual(tape.Grad(b), dy));
    EXPECT_EQ(weight.target_count, 0) << "no gradient reached the weight";
    EXPECT_EQ(weight.ready_count, 1);
  }
  std::vector<Tensor> grads;
  for (bool fused : {true, false}) {
    Tape tape;
    const Tensor a = tape.Watch(x), b = tape.Watch(residual);
    tape.Backward(
        fused ? AddRmsNorm(a, b, ParamRef(&weight), 1e-5).normed : RmsNorm(PlainAdd(a, b), ParamRef(&weight), 1e-5),
        dy);
    grads.push_back(tape.Grad(a));
    grads.push_back(tape.Grad(b));
  }
  EXPECT_LE(MaxDifference(grads[0], grads[2]), 1e-14);
  EXPECT_LE(MaxDifference(grads[1], grads[3]), 1e-14);
}

TEST(RmsNorm, RefusesAWeightOfAnotherWidth) {
  const Tensor x = RandomTensor("x", {2, 4}), weight = RandomTensor("w", {3});
  EXPECT_EQ(ErrorOf([&] { RmsNorm(x, weight, 1e-5); }), "rms_norm: weight has shape (3), expected (4)");
}

TEST(LayerNorm, RefusesABiasOfAnotherType) {
  const Tensor x = RandomTensor("x", {2, 4}), weight = RandomTensor("w", {4});
  EXPECT_EQ(ErrorOf([&] { LayerNorm(x, weight, CopyTo(weight, DType::kF32), 1e-5); }),
            "layer_norm: x is f64, bias is f32; they must be equal");
}

TEST(AddLayerNorm, RefusesAResidualOfAnotherShape) {
  const Tensor x = RandomTensor("x", {2, 4}), residual = RandomTensor("r", {1, 4}), weight = RandomTensor("w", {4});
  EXPECT_EQ(ErrorOf([&] { AddLayerNorm(x, residual, weight, {}, 1e-5); }),
            "layer_norm: x has shape (2, 4), residual has (1, 4); they must be equal");
}

}  // namespace
}  // namespace tessera::testing
