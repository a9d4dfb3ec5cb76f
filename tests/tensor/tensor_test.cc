// SPDX-License-Identifier: Apache-2.0
// The tensor as a value, and the rows fill, copy and scale that it is made with.
#include "tensor/tensor.h"

#include <cmath>
#include <limits>

#include "tensor/context.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/scale.h"
#include "tests/support/guard_allocator.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                               DType::kI32, DType::kI64,  DType::kU8};
constexpr DType kFloatingTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// One shape in every kind of layout, each inside NaN-free memory of its own.
std::vector<Tensor> InEveryLayout(const Shape& shape, DType dtype, bool writable) {
  std::vector<Tensor> tensors = {Zeros(shape, dtype)};
  Shape swapped = shape, wider = shape, narrower = shape;
  std::swap(swapped[0], swapped[shape.rank() - 1]);
  wider[shape.rank() - 1] += 3;
  narrower[0] = 1;
  const Tensor transposed = Zeros(swapped, dtype), padded = Zeros(wider, dtype), one_row = Zeros(narrower, dtype);
  tensors.push_back(transposed.WithLayout(transposed.layout().Transpose(0, -1)));
  tensors.push_back(padded.WithLayout(padded.layout().Narrow(-1, 2, shape.back())));
  if (!writable) tensors.push_back(one_row.WithLayout(one_row.layout().Expand(shape)));
  return tensors;
}

TEST(Tensor, SharesMemoryWhenCopied) {
  const Tensor x = Tensor::From<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor same = x, transposed = x.WithLayout(x.layout().Transpose(0, 1));
  ops::Fill({.out = x.WithLayout(x.layout().Select(0, 1)).Write(), .value = 9});
  EXPECT_EQ(same.ToVector(), (std::vector<double>{1, 2, 3, 9, 9, 9}));
  EXPECT_EQ(transposed.ToVector(), (std::vector<double>{1, 9, 2, 9, 3, 9}));
  EXPECT_EQ(transposed.At(2, 1), 9);
  EXPECT_EQ(x.storage().use_count(), 3);
}

TEST(Tensor, AllViewsShareOneVersionThatEveryWriteRaises) {
  const Tensor x = Zeros({2, 3}, DType::kF32), view = x.WithLayout(x.layout().Narrow(1, 0, 2));
  const uint32_t version = x.storage()->version();
  (void)view.Read();
  EXPECT_EQ(x.storage()->version(), version);
  (void)view.Write();
  EXPECT_EQ(x.storage()->version(), version + 1);
}

TEST(Tensor, SaysWhatIsWrong) {
  const Tensor x = Zeros({2, 3}, DType::kF32), none;
  EXPECT_EQ(x.ToString(), "f32 (2, 3) cpu");
  EXPECT_EQ(none.ToString(), "undefined");
  EXPECT_EQ(ErrorOf([&] { x.At(2, 0); }), "At: index 2 is outside dim 0 of (2, 3)");
  EXPECT_EQ(ErrorOf([&] { x.At(0); }), "At: 1 indexes for shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { x.Item(); }), "Item: shape (2, 3) has 6 elements, not 1");
  EXPECT_EQ(ErrorOf([&] { none.Read(); }), "tensor: an undefined tensor has no data");
  EXPECT_EQ(ErrorOf([&] { EmptyOn(kMeta, {1}, DType::kF32).Item(); }),
            "Item: the tensor is on meta, this reads CPU memory");
  EXPECT_EQ(ErrorOf([] { Tensor::From<float>({1, 2}, {3}); }), "tensor: 2 values do not fill shape (3)");
  EXPECT_EQ(ErrorOf([&] { x.WithLayout(Layout::Contiguous({7})); }),
            "tensor: shape (7) strides (1) offset 0 reaches past the 24 bytes of its storage");
  EXPECT_EQ(ErrorOf([] { EmptyOn(kMeta, {int64_t{1} << 62}, DType::kF32); }),
            "tensor: shape (4611686018427387904) has more bytes than 64 bits count");
}

TEST(Fill, WritesEveryDTypeInEveryLayoutAndNothingElse) {
  for (const DType dtype : kAllTypes) {
    for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{7, 3, 700}, Shape{0, 4}, Shape{4, 0}}) {
      for (const Tensor& x : InEveryLayout(shape, dtype, /*writable=*/true)) {
        ops::Fill({.out = x.Write(), .value = 3});
        EXPECT_EQ(x.ToVector(), std::vector<double>(static_cast<size_t>(x.numel()), 3.0));
        double outside = 0;
        const Tensor all = x.WithLayout(Layout::Contiguous({x.storage()->bytes() / ItemSize(dtype)}));
        for (double value : all.ToVector()) outside += value;
        EXPECT_EQ(outside, 3.0 * static_cast<double>(x.numel()));
      }
    }
  }
  const Tensor row = Zeros({1, 3}, DType::kF32);
  EXPECT_NE(ErrorOf([&] {
              ops::Fill({.out = row.WithLayout(row.layout().Expand({2, 3})).Write()});
            }).find("fill: out names"),
            std::string::npos);
}

TEST(Copy, ConvertsBetweenAllDTypesInAllLayouts) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 41}, Shape{1}, Shape{0, 4}, Shape{4, 0}}) {
    for (const DType from : kAllTypes) {
      for (const Tensor& x : InEveryLayout(shape, from, /*writable=*/false)) {
        if (!x.layout().HasOverlap()) {
          ops::Copy({.x = RandomTensor("x", shape, 0, 100, DType::kF32).Read(), .out = x.Write()});
        }
        for (const DType to : kAllTypes) {
          for (const Tensor& out : InEveryLayout(shape, to, /*writable=*/true)) {
            ops::Copy({.x = x.Read(), .out = out.Write()});
            const std::vector<double> got = out.ToVector(), expected = x.ToVector();
            for (size_t i = 0; i < got.size(); ++i) {
              const double rounded = to == DType::kBF16  ? ToFloat(ToBFloat16(static_cast<float>(expected[i])))
                                     : to == DType::kF16 ? ToFloat(ToFloat16(static_cast<float>(expected[i])))
                                     : to == DType::kF32 ? static_cast<float>(expected[i])
                                     : IsFloating(to)    ? expected[i]
                                                         : std::trunc(expected[i]);
              ASSERT_EQ(got[i], rounded) << Name(from) << " to " << Name(to) << ", element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Copy, Accumulates) {
  for (const DType from : kFloatingTypes) {
    for (const DType to : kFloatingTypes) {
      const Tensor x = CopyTo(Tensor::From<double>({1, 2, -3}, {3}), from);
      const Tensor out = CopyTo(Tensor::From<double>({0.5, 256, 3}, {3}), to);
      ops::Copy({.x = x.Read(), .out = out.Write(), .accumulate = true});
      EXPECT_EQ(out.ToVector(), (std::vector<double>{1.5, 258, 0}));
    }
  }
  const Tensor ids = Zeros({3}, DType::kI32);
  EXPECT_EQ(ErrorOf([&] { ops::Copy({.x = ids.Read(), .out = ids.Write(), .accumulate = true}); }),
            "copy: x is i32, expected f32, bf16, f16 or f64");
}

TEST(Copy, RefusesWhatDoesNotFit) {
  const Tensor x = Zeros({2, 3}, DType::kF32);
  EXPECT_EQ(ErrorOf([&] {
              ops::Copy({.x = x.Read(), .out = Zeros({3, 2}, DType::kF32).Write()});
            }),
            "copy: x has shape (2, 3), out has (3, 2); they must be equal");
  EXPECT_EQ(ErrorOf([&] {
              ops::Copy({.x = x.Read(), .out = EmptyOn(kMeta, {2, 3}, DType::kF32).Write()});
            }),
            "copy: x is on cpu, out is on meta; they must be equal");
}

TEST(Scale, MultipliesInPlaceByHostAndDeviceFactors) {
  for (const DType dtype : kFloatingTypes) {
    for (const Tensor& x : InEveryLayout({3, 5}, dtype, /*writable=*/true)) {
      ops::Fill({.out = x.Write(), .value = 3});
      const Tensor factor = Full({1}, DType::kF32, 0.5);
      ops::Scale({.x = x.Read(), .out = x.Write(), .factor = 4, .factor_tensor = factor.Read(), .shift = 1});
      EXPECT_EQ(x.ToVector(), std::vector<double>(15, 7.0));
    }
  }
  const Tensor x = Full({2}, DType::kF32, 1), sum = Full({2}, DType::kF64, 10), two = Full({2}, DType::kF32, 1);
  ops::Scale({.x = x.Read(), .out = sum.Write(), .factor = 0.1, .accumulate = true});
  EXPECT_EQ(sum.At(0), 10.1);  // in f64, as one of both is
  EXPECT_EQ(ErrorOf([&] { ops::Scale({.x = x.Read(), .out = x.Write(), .factor_tensor = two.Read()}); }),
            "scale: factor_tensor is f32 (2), expected one element of f32 or f64");
}

TEST(Context, DecidesWhereTensorsAreMade) {
  GuardAllocator allocator;
  Context context;
  context.cpu_allocator = &allocator;
  {
    const ContextGuard guard(context);
    const Tensor x = Zeros({3}, DType::kF32);
    EXPECT_EQ(allocator.stats().bytes, 12);
    Context meta = CurrentContext();
    meta.device = kMeta;
    const ContextGuard inner(meta);
    EXPECT_TRUE(Zeros({3}, DType::kF32).device().is_meta());
    EXPECT_TRUE(EmptyLike(x).device().is_cpu());
  }
  EXPECT_TRUE(Zeros({3}, DType::kF32).device().is_cpu());
  EXPECT_EQ(allocator.damaged_blocks(), 0);
}

TEST(Context, RandomKeysDependOnEveryPartAndCount) {
  Context context;
  context.seed = 7;
  const uint64_t first = context.NextRandomKey("a").bits(), second = context.NextRandomKey("a").bits();
  EXPECT_NE(first, second);
  context.random_calls = 0;
  EXPECT_EQ(context.NextRandomKey("a").bits(), first);
  context.BeginMicroStep(1, 0);
  EXPECT_NE(context.NextRandomKey("a").bits(), first);
  context.BeginMicroStep(0, 1);
  EXPECT_NE(context.NextRandomKey("a").bits(), first);
  context.BeginMicroStep(0, 0);
  context.rank = 1;
  EXPECT_NE(context.NextRandomKey("a").bits(), first);
  context.rank = 0;
  context.random_calls = 0;
  EXPECT_NE(context.NextRandomKey("b").bits(), first);
}

TEST(Error, CarriesThePathOfTheInnermostScope) {
  const std::string outer = "gpt", inner = "gpt.blocks.3";
  const ErrorScope outer_scope(&outer);
  {
    const ErrorScope inner_scope(&inner);
    EXPECT_EQ(ErrorOf([] { throw Error(Str("linear: ", 3, " of ", 2.5, " ", true)); }),
              "gpt.blocks.3: linear: 3 of 2.5 true");
  }
  EXPECT_EQ(ErrorOf([] { throw Error("x"); }), "gpt: x");
}

}  // namespace
}  // namespace tessera::testing
