// SPDX-License-Identifier: Apache-2.0
#include "autograd/views.h"

#include "autograd/elementwise.h"
#include "autograd/reduce.h"
#include "autograd/tape.h"
#include "tensor/ops/scale.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<OpCase> ViewCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& shape, auto f) {
    const auto run = [f](std::span<const Input> in) { return std::vector<Tensor>{f(in[0])}; };
    cases.push_back({.name = name, .inputs = {{shape}}, .run = run});
  };
  add("ReshapeMerge", {2, 3, 4}, [](const Input& x) { return Reshape(x, {6, -1}); });
  add("ReshapeSplit", {6, 4}, [](const Input& x) { return Reshape(x, {2, 3, 2, 2}); });
  add("ReshapeAcross", {4, 6}, [](const Input& x) { return Reshape(x, {3, 8}); });
  add("ReshapeToScalar", {1, 1}, [](const Input& x) { return Reshape(x, {}); });
  add("ReshapeEmpty", {0, 4}, [](const Input& x) { return Reshape(x, {2, 0}); });
  add("ReshapeOfTransposedCopies", {4, 6}, [](const Input& x) { return Reshape(Transpose(x, 0, 1), {3, 8}); });
  add("Transpose", {3, 4}, [](const Input& x) { return Transpose(x, 0, 1); });
  add("TransposeInner", {2, 3, 4, 5}, [](const Input& x) { return Transpose(x, -3, 2); });
  add("TransposeNoRows", {0, 4}, [](const Input& x) { return Transpose(x, 0, 1); });
  add("TransposeNoColumns", {4, 0}, [](const Input& x) { return Transpose(x, 0, 1); });
  add("Permute", {2, 3, 4}, [](const Input& x) { return Permute(x, {2, 0, -2}); });
  add("Narrow", {4, 5}, [](const Input& x) { return Narrow(x, 1, 1, 3); });
  add("NarrowRows", {4, 5}, [](const Input& x) { return Narrow(x, 0, 3, 1); });
  add("NarrowToNothing", {4, 5}, [](const Input& x) { return Narrow(x, 0, 4, 0); });
  add("NarrowAll", {4, 5}, [](const Input& x) { return Narrow(x, -1, 0, 5); });
  add("NarrowNoRows", {0, 5}, [](const Input& x) { return Narrow(x, 1, 1, 2); });
  add("NarrowOverlapping", {6}, [](const Input& x) { return Mul(Narrow(x, 0, 0, 4), Narrow(x, 0, 2, 4)); });
  add("Select", {3, 4, 2}, [](const Input& x) { return Select(x, 1, 2); });
  add("SelectToScalar", {3}, [](const Input& x) { return Select(x, 0, 2); });
  add("SelectNoColumns", {3, 0}, [](const Input& x) { return Select(x, 0, 2); });
  add("Expand", {3, 1}, [](const Input& x) { return Expand(x, {2, 3, 4}); });
  add("ExpandScalar", {}, [](const Input& x) { return Expand(x, {2, 3}); });
  add("ExpandToNothing", {3, 1}, [](const Input& x) { return Expand(x, {3, 0}); });
  add("ExpandNoRows", {0, 1}, [](const Input& x) { return Expand(x, {0, 3}); });
  add("ExpandThenReshape", {3, 1}, [](const Input& x) { return Reshape(Expand(x, {3, 4}), {2, 6}); });
  add("Squeeze", {3, 1, 4}, [](const Input& x) { return Squeeze(x, -2); });
  add("Unsqueeze", {3, 4}, [](const Input& x) { return Unsqueeze(x, 1); });
  add("UnsqueezeLastOfTransposed", {3, 4}, [](const Input& x) { return Unsqueeze(Transpose(x, 0, 1), -1); });
  add("ContiguousOfTransposed", {3, 4}, [](const Input& x) { return Contiguous(Transpose(x, 0, 1)); });
  add("Contiguous", {3, 4}, [](const Input& x) { return Contiguous(x); });
  add("Cast", {3, 4}, [](const Input& x) { return Cast(Cast(x, DType::kF64), x.dtype()); });
  add("OwnDTypeCast", {3, 4}, [](const Input& x) { return Cast(x, x.dtype()); });
  add("ChainOfViews", {2, 6, 4}, [](const Input& x) {
    return Transpose(Narrow(Reshape(Transpose(x, 1, 2), {4, 2, 6}), 2, 1, 4), 0, 2);
  });
  const auto split = [](std::span<const Input> in) { return Split(in[0], 3, -1); };
  cases.push_back({.name = "Split", .inputs = {{{4, 6}}}, .run = split});
  cases.push_back({.name = "SplitNoRows", .inputs = {{{0, 6}}}, .run = split});
  cases.push_back({.name = "SplitNoColumns", .inputs = {{{2, 0}}}, .run = split});
  const auto use_one = [](std::span<const Input> in) { return std::vector<Tensor>{Split(in[0], 3, 0)[1]}; };
  cases.push_back({.name = "SplitWithUnusedParts", .inputs = {{{6, 4}}}, .run = use_one});
  const auto concat = [](int dim) {
    return [dim](std::span<const Input> in) {
      std::vector<Tensor> tensors;
      for (const Input& input : in) tensors.push_back(*input.tensor());
      return std::vector<Tensor>{Concat(tensors, dim)};
    };
  };
  const auto add_concat = [&](const char* name, std::vector<OpInput> inputs, int dim) {
    cases.push_back({.name = name, .inputs = std::move(inputs), .run = concat(dim), .parameters = false});
  };
  add_concat("ConcatRows", {{{2, 3}}, {{1, 3}}, {{4, 3}}}, 0);
  add_concat("ConcatColumns", {{{2, 3}}, {{2, 1}}}, -1);
  add_concat("ConcatOne", {{{2, 3}}}, 1);
  add_concat("ConcatMany", {{{2}}, {{1}}, {{3}}, {{2}}, {{1}}, {{2}}}, 0);
  add_concat("ConcatNoRows", {{{0, 3}}, {{2, 3}}}, 0);
  add_concat("ConcatNoColumns", {{{2, 0}}, {{2, 0}}}, 0);
  return cases;
}

TESSERA_OP_CASES(Views, ViewCases());

TEST(Views, ShareMemoryWhereTheyCan) {
  const Tensor x = RandomTensor("x", {4, 6});
  for (const Tensor& view : {Reshape(x, {2, 12}), Transpose(x, 0, 1), Narrow(x, 1, 2, 3), Select(x, 0, 1),
                             Expand(x, {3, 4, 6}), Unsqueeze(x, 0), Contiguous(x), Cast(x, DType::kF64),
                             Split(x, 2, 0)[1], Reshape(Transpose(x, 0, 1), {6, 2, 2})}) {
    EXPECT_EQ(view.storage().get(), x.storage().get());
  }
  EXPECT_NE(Reshape(Transpose(x, 0, 1), {24}).storage().get(), x.storage().get());
  EXPECT_NE(Contiguous(Transpose(x, 0, 1)).storage().get(), x.storage().get());
}

TEST(Views, OfAParameterAreCopiesThatNodesMaySave) {
  class Label final : public StorageLabel {
   public:
    std::string ParameterAt(int64_t) const override { return "w"; }
  } label;
  TestParameter w("w", RandomTensor("w", {3, 4}), DType::kF64);
  const Tensor data = w.Data();
  data.storage()->SetLabel(&label);
  Tape tape;
  const Tensor t = Transpose(ParamRef(&w), 0, 1), piece = Narrow(ParamRef(&w), 0, 1, 2);
  EXPECT_NE(t.storage().get(), data.storage().get());
  tape.Backward(Add(Sum(Square(t)), Sum(Square(piece))));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 4; ++j) EXPECT_DOUBLE_EQ(w.grad().At(i, j), (i >= 1 ? 4 : 2) * data.At(i, j));
  }
}

TEST(Views, OfIntegersAndUntrackedTensorsRecordNothing) {
  Tape tape;
  const Tensor ids = Tensor::From<int64_t>({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(Select(Transpose(ids, 0, 1), 0, 1).ToVector(), (std::vector<double>{2, 4}));
  EXPECT_EQ(Concat({ids, ids}, 0).shape(), (Shape{4, 2}));
  const Tensor x = tape.Watch(RandomTensor("x", {2, 2}));
  EXPECT_FALSE(Cast(x, DType::kI32).tracked());
  EXPECT_EQ(tape.node_count(), 0);
}

TEST(Views, CastPassesTheGradientInTheInputsDType) {
  Tape tape;
  const Tensor x = tape.Watch(Full({3}, DType::kBF16, 1));
  const Tensor y = Cast(x, DType::kF32);
  tape.Backward(y, Full({3}, DType::kF32, 1.00390625));  // a tie in bf16, to even
  EXPECT_EQ(tape.Grad(x).dtype(), DType::kBF16);
  EXPECT_EQ(tape.Grad(x).At(0), 1);
}

TEST(Views, SayWhatIsWrong) {
  const Tensor x = RandomTensor("x", {2, 3});
  EXPECT_EQ(ErrorOf([&] { Reshape(x, {4, -1}); }), "reshape: 6 elements do not fit shape (4, -1)");
  EXPECT_EQ(ErrorOf([&] { Reshape(x, {4}); }), "reshape: shape (2, 3) has 6 elements, (4) has 4");
  EXPECT_EQ(ErrorOf([&] { Transpose(x, 0, 2); }), "transpose: dim 2 is outside [-2, 2)");
  EXPECT_EQ(ErrorOf([&] { Permute(x, {0, 0}); }), "permute: dim 0 is named twice");
  EXPECT_EQ(ErrorOf([&] { Narrow(x, 1, 2, 2); }), "narrow: [2, 2 + 2) is outside dim 1 of shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { Select(x, 0, 2); }), "select: index 2 is outside dim 0 of shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { Expand(x, {4, 3}); }), "expand: shape (2, 3) does not expand to (4, 3)");
  EXPECT_EQ(ErrorOf([&] { Squeeze(x, 0); }), "squeeze: dim 0 of shape (2, 3) has size 2, expected 1");
  EXPECT_EQ(ErrorOf([&] { Split(x, 2, 1); }), "split: dim 1 of shape (2, 3) does not divide into 2 parts");
  EXPECT_EQ(ErrorOf([&] { Concat({}, 0); }), "concat: no tensors were given");
  EXPECT_EQ(ErrorOf([&] {
              Concat({x, RandomTensor("y", {2, 4})}, 0);
            }),
            "concat: f64 (2, 4) cpu does not fit f64 (2, 3) cpu: dtypes and all sizes but that of dim 0 must be equal");
}

// x times itself through a view, with `change` applied to the viewed tensor between forward and backward.
struct AliasCase {
  const char* name;
  Tensor (*view)(const Tensor&);
};

class SavedAlias : public ::testing::TestWithParam<AliasCase> {};

TEST_P(SavedAlias, ChangedInPlaceIsAnErrorInBackward) {
  const auto forward = [](Tape& tape, Tensor* x, Tensor* a) {
    *x = tape.Watch(RandomTensor("x", {2, 3}));
    *a = Scale(*x, 1);
    const Tensor t = GetParam().view(*a);
    return Sum(Mul(t, t));
  };
  Tensor x, a;
  {
    Tape tape;
    const Tensor loss = forward(tape, &x, &a);
    const uint32_t version = a.storage()->version();
    ops::Scale({.x = a.Read(), .out = a.Write(), .shift = 1});
    EXPECT_EQ(ErrorOf([&] { tape.Backward(loss); }),
              Str("mul: a tensor saved for backward (", GetParam().view(a.Detach()),
                  ") was modified in place: it was at version ", version, " when saved and is at version ", version + 1,
                  " now"));
  }
  // Left alone, the gradient is 2 x wherever the view reaches.
  Tape tape;
  const Tensor loss = forward(tape, &x, &a);
  tape.Backward(loss);
  Tape reference;
  const Tensor x2 = reference.Watch(x.Detach());
  const Tensor seen = GetParam().view(x2);
  reference.Backward(seen, CopyTo(Scale(seen.Detach(), 2), DType::kF64));
  EXPECT_LE(MaxDifference(tape.Grad(x), reference.Grad(x2)), 1e-15);
}

INSTANTIATE_TEST_SUITE_P(Views, SavedAlias,
                         ::testing::Values(AliasCase{"Transpose", [](const Tensor& a) { return Transpose(a, 0, 1); }},
                                           AliasCase{"Narrow", [](const Tensor& a) { return Narrow(a, 1, 1, 2); }},
                                           AliasCase{"Reshape",
                                                     [](const Tensor& a) {
                                                       return Reshape(a, {3, 2});
                                                     }},
                                           AliasCase{"Broadcast",
                                                     [](const Tensor& a) {
                                                       return Expand(a, {4, 2, 3});
                                                     }},
                                           AliasCase{"Itself", [](const Tensor& a) { return a; }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
