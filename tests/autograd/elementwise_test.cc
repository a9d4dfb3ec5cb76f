// SPDX-License-Identifier: Apache-2.0
#include "autograd/elementwise.h"

#include <cmath>
#include <limits>

#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

OpFunction Of(Tensor (*f)(const Input&)) {
  return [f](std::span<const Input> in) { return std::vector<Tensor>{f(in[0])}; };
}
Tensor GeluTanh(const Input& x) { return Gelu(x, GeluKind::kTanh); }
Tensor GeluErf(const Input& x) { return Gelu(x, GeluKind::kErf); }

Tensor PlainGeluTanh(const Input& x) {
  const Tensor cube = Mul(Square(x), x);
  const Tensor u = Scale(Add(x, Scale(cube, 0.044715)), 0.79788456080286535588);
  return Scale(Mul(x, AddScalar(Tanh(u), 1)), 0.5);
}

std::vector<OpCase> UnaryCases() {
  struct Function {
    const char* name;
    Tensor (*f)(const Input&);
    double low, high;
    Tensor (*composition)(const Input&) = nullptr;
  };
  const Function functions[] = {
      {"Neg", Neg, -1, 1, [](const Input& x) { return Scale(x, -1); }},
      {"Exp", Exp, -2, 2},
      {"Log", Log, 0.25, 2},
      {"Sqrt", Sqrt, 0.25, 2},
      {"Rsqrt", Rsqrt, 0.25, 2, [](const Input& x) { return Reciprocal(Sqrt(x)); }},
      {"Square", Square, -1, 1, [](const Input& x) { return Mul(x, x); }},
      {"Abs", Abs, -1, 1, [](const Input& x) { return Add(Relu(x), Relu(Neg(x))); }},
      {"Reciprocal", Reciprocal, 0.5, 2},
      {"Tanh", Tanh, -2, 2, [](const Input& x) { return AddScalar(Scale(Sigmoid(Scale(x, 2)), 2), -1); }},
      {"Sigmoid", Sigmoid, -3, 3, [](const Input& x) { return Reciprocal(AddScalar(Exp(Neg(x)), 1)); }},
      {"Relu", Relu, -1, 1},
      {"Silu", Silu, -3, 3, [](const Input& x) { return Mul(x, Sigmoid(x)); }},
      {"GeluTanh", GeluTanh, -3, 3, PlainGeluTanh},
      {"GeluErf", GeluErf, -3, 3},
  };
  const std::pair<const char*, Shape> shapes[] = {{"Matrix", {3, 5}}, {"OneElement", {1}},
                                                  {"Scalar", {}},     {"OddBlocks", {3, 2, 211}},
                                                  {"NoRows", {0, 4}}, {"NoColumns", {4, 0}}};
  std::vector<OpCase> cases;
  for (const Function& function : functions) {
    for (const auto& [shape_name, shape] : shapes) {
      cases.push_back({.name = std::string(function.name) + shape_name,
                       .inputs = {{shape, function.low, function.high}},
                       .run = Of(function.f),
                       .composition = function.composition != nullptr ? Of(function.composition) : nullptr});
    }
  }
  cases.push_back({.name = "SiluManyChunks", .inputs = {{{5, 7001}, -3, 3}}, .run = Of(Silu)});
  const auto twice = [](std::span<const Input> in) { return std::vector<Tensor>{AddScalar(Scale(in[0], -2.5), 0.75)}; };
  for (const auto& [shape_name, shape] : shapes) {
    cases.push_back({.name = std::string("ScaleAndShift") + shape_name, .inputs = {{shape}}, .run = twice});
  }
  return cases;
}

TESSERA_OP_CASES(Unary, UnaryCases());

std::vector<OpCase> BinaryCases() {
  struct Function {
    const char* name;
    Tensor (*f)(const Input&, const Input&);
    Tensor (*composition)(const Input&, const Input&) = nullptr;
  };
  const Function functions[] = {
      {"Add", Add, [](const Input& a, const Input& b) { return Sub(a, Neg(b)); }},
      {"Sub", Sub, [](const Input& a, const Input& b) { return Add(a, Neg(b)); }},
      {"Mul", Mul, [](const Input& a, const Input& b) { return Div(a, Reciprocal(b)); }},
      {"Div", Div, [](const Input& a, const Input& b) { return Mul(a, Reciprocal(b)); }},
  };
  struct Shapes {
    const char* name;
    Shape a, b;
  };
  const Shapes shapes[] = {
      {"Same", {3, 5}, {3, 5}},         {"Row", {4, 5}, {5}},
      {"RowFirst", {5}, {4, 5}},        {"Column", {2, 3, 5}, {3, 1}},
      {"Outer", {4, 1}, {1, 5}},        {"MiddleAndBatch", {2, 1, 4, 3}, {5, 1, 3}},
      {"Scalar", {}, {3, 2}},           {"OneElement", {2, 3}, {1}},
      {"OneElements", {1, 1}, {1}},     {"WideRow", {3, 601}, {601}},
      {"WideColumn", {3, 601}, {3, 1}}, {"ManyRows", {150, 9}, {9}},
      {"NoRows", {0, 4}, {4}},          {"NoRowsOfOne", {0, 4}, {1, 4}},
      {"NoColumns", {3, 0}, {3, 1}},
  };
  std::vector<OpCase> cases;
  for (const Function& function : functions) {
    const auto run = [f = function.f](std::span<const Input> in) { return std::vector<Tensor>{f(in[0], in[1])}; };
    const auto plain = [f = function.composition](std::span<const Input> in) {
      return std::vector<Tensor>{f(in[0], in[1])};
    };
    for (const Shapes& shape : shapes) {
      cases.push_back({.name = std::string(function.name) + shape.name,
                       .inputs = {{shape.a}, {shape.b, 0.5, 2}},
                       .run = run,
                       .composition = plain});
    }
    const auto itself = [f = function.f](std::span<const Input> in) { return std::vector<Tensor>{f(in[0], in[0])}; };
    cases.push_back({.name = std::string(function.name) + "Itself", .inputs = {{{3, 4}, 0.5, 2}}, .run = itself});
  }
  return cases;
}

TESSERA_OP_CASES(Binary, BinaryCases());

TEST(Unary, MatchesGoldenValues) {
  for (const char* suffix : {"", "_wide"}) {
    ExpectMatchesGolden(Str("gelu_tanh", suffix), {"x"}, Of(GeluTanh));
    ExpectMatchesGolden(Str("gelu_erf", suffix), {"x"}, Of(GeluErf));
    ExpectMatchesGolden(Str("silu", suffix), {"x"}, Of(Silu));
  }
}

TEST(Unary, TakesSpecialValuesToTheirLimits) {
  struct Limit {
    Tensor (*f)(const Input&);
    double x, y, gradient;
  };
  const Limit limits[] = {
      {Exp, -kInf, 0, 0},      {Exp, kInf, kInf, kInf},   {Exp, 1e4, kInf, kInf},       {Exp, -1e4, 0, 0},
      {Log, 0, -kInf, kInf},   {Log, -1, kNan, -1},       {Log, kInf, kInf, 0},         {Sqrt, 0, 0, kInf},
      {Sqrt, -1, kNan, kNan},  {Rsqrt, 0, kInf, -kInf},   {Rsqrt, kInf, 0, 0},          {Abs, 0, 0, 0},
      {Abs, -kInf, kInf, -1},  {Tanh, kInf, 1, 0},        {Tanh, -kInf, -1, 0},         {Sigmoid, kInf, 1, 0},
      {Sigmoid, -kInf, 0, 0},  {Relu, 0, 0, 0},           {Relu, -kInf, 0, 0},          {Relu, kInf, kInf, 1},
      {Silu, kInf, kInf, 1},   {Silu, -kInf, 0, 0},       {Silu, -1e30, 0, 0},          {GeluTanh, kInf, kInf, 1},
      {GeluTanh, -kInf, 0, 0}, {GeluTanh, 1e30, 1e30, 1}, {GeluTanh, -1e30, 0, 0},      {GeluErf, kInf, kInf, 1},
      {GeluErf, -kInf, 0, 0},  {GeluErf, -1e30, 0, 0},    {Reciprocal, 0, kInf, -kInf},
  };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Limit& limit : limits) {
      Tape tape;
      const Tensor x = tape.Watch(CopyTo(Tensor::From({limit.x}, {1}), dtype));
      const Tensor y = limit.f(x);
      const double expected = dtype == DType::kF32 ? static_cast<float>(limit.y) : limit.y;
      const size_t row = static_cast<size_t>(&limit - limits);
      if (std::isnan(limit.y)) {
        EXPECT_TRUE(std::isnan(y.Item())) << Name(dtype) << ", row " << row << ": " << y.Item();
      } else {
        EXPECT_EQ(y.Item(), expected) << Name(dtype) << ", row " << row;
      }
      tape.Backward(y);
      const double gradient = tape.Grad(x).Item();
      if (std::isnan(limit.gradient)) {
        EXPECT_TRUE(std::isnan(gradient)) << Name(dtype) << ", row " << row << ": " << gradient;
      } else {
        EXPECT_EQ(gradient, limit.gradient) << Name(dtype) << ", row " << row;
      }
    }
    for (const auto f :
         {Neg, Exp, Log, Sqrt, Rsqrt, Square, Abs, Reciprocal, Tanh, Sigmoid, Relu, Silu, GeluTanh, GeluErf}) {
      EXPECT_TRUE(std::isnan(f(CopyTo(Tensor::From({kNan}, {1}), dtype)).Item()));
    }
  }
}

TEST(Unary, RefusesIntegers) {
  EXPECT_EQ(ErrorOf([] { Exp(Tensor::From<int64_t>({1}, {1})); }), "exp: x is i64, expected f32, bf16, f16 or f64");
}

TEST(Binary, SaysWhatDoesNotBroadcast) {
  const Tensor a = RandomTensor("a", {2, 3}), b = RandomTensor("b", {2});
  EXPECT_EQ(ErrorOf([&] { Add(a, b); }), "add: shapes (2, 3) and (2) do not broadcast (dim 1: 3 and 2)");
  EXPECT_EQ(ErrorOf([&] { Div(a, CopyTo(a, DType::kF32)); }), "div: a is f64, b is f32; they must be equal");
}

TEST(Binary, BackwardAsksForNoParameterThatItDoesNotRead) {
  const Tensor x = RandomTensor("x", {4, 3}, -1, 1, DType::kF32), row = RandomTensor("w", {3}, -1, 1, DType::kF32);
  struct Case {
    Tensor (*f)(const Input&, const Input&);
    bool frozen;
    int gathers;  // forward's one and, where needed, backward's
  };
  for (const Case& c :
       {Case{Add, false, 1}, Case{Sub, false, 1}, Case{Mul, false, 2}, Case{Div, false, 2}, Case{Mul, true, 2}}) {
    TestParameter w("w", row, DType::kF32);
    w.SetRequiresGrad(!c.frozen);
    Tape tape;
    tape.Backward(Sum(c.f(tape.Watch(x), ParamRef(&w))));
    EXPECT_EQ(w.data_count, c.gathers);
  }
  // With nothing to say to x, even Mul leaves the parameter alone.
  TestParameter w("w", row, DType::kF32);
  Tape tape;
  tape.Backward(Sum(Mul(x, ParamRef(&w))));
  EXPECT_EQ(w.data_count, 1);
}

TEST(Binary, BroadcastGradientsInBf16AreSummedInF32) {
  // 4096 gradients of 1: a sum kept in bf16 would stop at 256.
  Tape tape;
  const Tensor x = Full({4096, 3}, DType::kBF16, 1), w = tape.Watch(Full({3}, DType::kBF16, 1));
  const Tensor y = Mul(x, w);
  tape.Backward(y, Full(y.shape(), DType::kBF16, 1));
  for (double value : tape.Grad(w).ToVector()) EXPECT_EQ(value, 4096);
}

}  // namespace
}  // namespace tessera::testing
