// SPDX-License-Identifier: Apache-2.0
// The layout algebra, law by law, on random layouts against plain enumeration.
#include "tensor/layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "tensor/rng.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : key_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(key_.Bits(next_++)) % n; }

 private:
  RngKey key_;
  uint64_t next_ = 0;
};

// The storage element that each index names, row-major.
std::vector<int64_t> Elements(const Layout& layout) {
  std::vector<int64_t> elements;
  std::array<int64_t, kMaxRank> index{};
  for (int64_t n = layout.numel(); n > 0; --n) {
    int64_t element = layout.offset();
    for (int dim = 0; dim < layout.rank(); ++dim) element += index[static_cast<size_t>(dim)] * layout.stride(dim);
    elements.push_back(element);
    for (int dim = layout.rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<size_t>(dim)] < layout.size(dim)) break;
      index[static_cast<size_t>(dim)] = 0;
    }
  }
  return elements;
}

// The place of an index in Elements().
int64_t Place(const Shape& shape, std::span<const int64_t> index) {
  int64_t place = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) place = place * shape[dim] + index[static_cast<size_t>(dim)];
  return place;
}

template <class F>
void ForEachIndex(const Shape& shape, F&& f) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()), 0);
  for (int64_t n = shape.numel(); n > 0; --n) {
    f(std::span<const int64_t>(index));
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<size_t>(dim)] < shape[dim]) break;
      index[static_cast<size_t>(dim)] = 0;
    }
  }
}

Shape RandomShape(Dice& dice, bool with_zero) {
  Shape shape;
  for (int64_t rank = dice.Below(5); rank > 0; --rank) {
    shape.push_back(with_zero && dice.Below(12) == 0 ? 0 : 1 + dice.Below(4));
  }
  return shape;
}

// A contiguous layout after up to four random views.
Layout RandomLayout(Dice& dice, bool with_zero = true) {
  Layout layout = Layout::Contiguous(RandomShape(dice, with_zero), dice.Below(5));
  for (int64_t views = dice.Below(5); views > 0; --views) {
    const int rank = layout.rank();
    if (rank == 0) break;
    const int dim = static_cast<int>(dice.Below(rank));
    switch (dice.Below(4)) {
      case 0:
        layout = layout.Transpose(dim, static_cast<int>(dice.Below(rank)));
        break;
      case 1: {
        const int64_t start = dice.Below(layout.size(dim) + 1);
        const int64_t least = with_zero ? 0 : 1;
        if (layout.size(dim) - start < least) break;
        layout = layout.Narrow(dim, start, least + dice.Below(layout.size(dim) - start - least + 1));
        break;
      }
      case 2:
        if (layout.size(dim) == 1) {
          Shape wider = layout.shape();
          wider[dim] = 1 + dice.Below(3);
          layout = layout.Expand(wider);
        }
        break;
      default:
        if (rank > 1 && layout.size(dim) > 0) layout = layout.Select(dim, dice.Below(layout.size(dim)));
    }
  }
  return layout;
}

constexpr int kRounds = 3000;

TEST(Layout, TransposeSwapsIndexesAndIsItsOwnInverse) {
  Dice dice(1);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    if (layout.rank() == 0) continue;
    const int a = static_cast<int>(dice.Below(layout.rank())), b = static_cast<int>(dice.Below(layout.rank()));
    const Layout swapped = layout.Transpose(a, b);
    EXPECT_EQ(swapped.Transpose(a, b), layout);
    EXPECT_EQ(swapped, layout.Transpose(b - layout.rank(), a));
    const std::vector<int64_t> before = Elements(layout), after = Elements(swapped);
    ForEachIndex(layout.shape(), [&](std::span<const int64_t> index) {
      std::vector<int64_t> to(index.begin(), index.end());
      std::swap(to[static_cast<size_t>(a)], to[static_cast<size_t>(b)]);
      ASSERT_EQ(after[static_cast<size_t>(Place(swapped.shape(), to))],
                before[static_cast<size_t>(Place(layout.shape(), index))]);
    });
  }
}

TEST(Layout, PermuteIsUndoneByTheInverseOrder) {
  Dice dice(2);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    std::vector<int> order(static_cast<size_t>(layout.rank())), inverse = order;
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(dice.Below(static_cast<int64_t>(i)))]);
    }
    for (size_t i = 0; i < order.size(); ++i) inverse[static_cast<size_t>(order[i])] = static_cast<int>(i);
    const Layout permuted = layout.Permute(order);
    EXPECT_EQ(permuted.Permute(inverse), layout);
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(permuted.size(static_cast<int>(i)), layout.size(order[i]));
      EXPECT_EQ(permuted.stride(static_cast<int>(i)), layout.stride(order[i]));
    }
  }
}

TEST(Layout, NarrowOfNarrowIsOneNarrow) {
  Dice dice(3);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    if (layout.rank() == 0) continue;
    const int dim = static_cast<int>(dice.Below(layout.rank()));
    const int64_t start = dice.Below(layout.size(dim) + 1), length = dice.Below(layout.size(dim) - start + 1);
    const int64_t inner = dice.Below(length + 1), inner_length = dice.Below(length - inner + 1);
    const Layout twice = layout.Narrow(dim, start, length).Narrow(dim, inner, inner_length);
    EXPECT_EQ(Elements(twice), Elements(layout.Narrow(dim, start + inner, inner_length)));
    const std::vector<int64_t> whole = Elements(layout), part = Elements(twice);
    ForEachIndex(twice.shape(), [&](std::span<const int64_t> index) {
      std::vector<int64_t> from(index.begin(), index.end());
      from[static_cast<size_t>(dim)] += start + inner;
      ASSERT_EQ(part[static_cast<size_t>(Place(twice.shape(), index))],
                whole[static_cast<size_t>(Place(layout.shape(), from))]);
    });
  }
}

TEST(Layout, SelectIsNarrowWithoutTheDim) {
  Dice dice(4);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    if (layout.rank() == 0) continue;
    const int dim = static_cast<int>(dice.Below(layout.rank()));
    if (layout.size(dim) == 0) continue;
    const int64_t i = dice.Below(layout.size(dim));
    EXPECT_EQ(Elements(layout.Select(dim, i)), Elements(layout.Narrow(dim, i, 1)));
    EXPECT_EQ(layout.Select(dim, i).rank(), layout.rank() - 1);
  }
}

TEST(Layout, ExpandRepeatsAlongStrideZero) {
  Dice dice(5);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    Shape shape;
    for (int64_t extra = dice.Below(kMaxRank - layout.rank() + 1); extra > 0; --extra) shape.push_back(dice.Below(4));
    const int extra = shape.rank();
    for (int dim = 0; dim < layout.rank(); ++dim) {
      shape.push_back(layout.size(dim) == 1 ? 1 + dice.Below(3) : layout.size(dim));
    }
    const Layout wide = layout.Expand(shape);
    EXPECT_EQ(wide.shape(), shape);
    const std::vector<int64_t> from = Elements(layout), to = Elements(wide);
    ForEachIndex(shape, [&](std::span<const int64_t> index) {
      std::vector<int64_t> own(index.begin() + extra, index.end());
      for (int dim = 0; dim < layout.rank(); ++dim) {
        if (layout.size(dim) == 1) own[static_cast<size_t>(dim)] = 0;
      }
      ASSERT_EQ(to[static_cast<size_t>(Place(shape, index))], from[static_cast<size_t>(Place(layout.shape(), own))]);
    });
  }
}

// Strides for `shape` that name these elements, found from the elements themselves; false when there are none.
bool StridesExist(const std::vector<int64_t>& elements, const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[dim] = shape[dim] > 1 ? elements[static_cast<size_t>(step)] - elements[0] : 0;
    step *= shape[dim];
  }
  return Elements(Layout(shape, strides, elements[0])) == elements;
}

TEST(Layout, ReshapeKeepsTheOrderAndRefusesOnlyWhatHasNoStrides) {
  Dice dice(6);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4 * kRounds; ++round) {
    const Layout layout = RandomLayout(dice, /*with_zero=*/false);
    // A random factorisation of numel.
    Shape shape;
    int64_t rest = layout.numel();
    while (rest > 1 && shape.rank() < kMaxRank - 1) {
      int64_t factor = 1 + dice.Below(6);
      if (rest % factor != 0) factor = 1;
      shape.push_back(factor);
      rest /= factor;
    }
    shape.push_back(rest);
    const std::vector<int64_t> elements = Elements(layout);
    Layout reshaped;
    if (layout.TryReshape(shape, &reshaped)) {
      ++accepted;
      EXPECT_EQ(reshaped.shape(), shape);
      ASSERT_EQ(Elements(reshaped), elements) << layout.ToString() << " to " << shape.ToString();
    } else {
      ++refused;
      ASSERT_FALSE(StridesExist(elements, shape)) << layout.ToString() << " to " << shape.ToString();
    }
  }
  EXPECT_GT(accepted, kRounds);
  EXPECT_GT(refused, kRounds / 10);
}

TEST(Layout, ReshapeOfEmptyTensorsAlwaysWorks) {
  Layout result;
  EXPECT_TRUE(Layout::Contiguous({0, 4}).Transpose(0, 1).TryReshape({2, 0, 3}, &result));
  EXPECT_EQ(result.shape(), (Shape{2, 0, 3}));
}

TEST(Layout, PropertiesSayWhatEnumerationShows) {
  Dice dice(7);
  for (int round = 0; round < kRounds; ++round) {
    const Layout layout = RandomLayout(dice);
    const std::vector<int64_t> elements = Elements(layout);
    EXPECT_EQ(layout.numel(), static_cast<int64_t>(elements.size()));
    bool dense = true;
    for (size_t i = 0; i < elements.size(); ++i) dense &= elements[i] == elements[0] + static_cast<int64_t>(i);
    EXPECT_EQ(layout.IsContiguous(), dense) << layout.ToString();
    EXPECT_EQ(layout.HasOverlap(), std::set(elements.begin(), elements.end()).size() < elements.size())
        << layout.ToString();
    EXPECT_EQ(layout.EndOffset(), elements.empty() ? 0 : *std::max_element(elements.begin(), elements.end()) + 1);
    if (layout.rank() > 0 && !elements.empty()) {
      bool dense_rows = true;
      const size_t width = static_cast<size_t>(layout.shape().back());
      for (size_t i = 1; i < width; ++i) dense_rows &= elements[i] == elements[0] + static_cast<int64_t>(i);
      EXPECT_EQ(layout.HasDenseRows(), dense_rows) << layout.ToString();
    }
  }
}

TEST(Layout, CountsIn64Bits) {
  const Layout layout = Layout::Contiguous({65537, 65536, 4});
  EXPECT_EQ(layout.numel(), int64_t{65537} * 65536 * 4);
  EXPECT_EQ(layout.stride(0), int64_t{65536} * 4);
  EXPECT_EQ(layout.Narrow(0, 65536, 1).offset(), int64_t{65536} * 65536 * 4);
  EXPECT_EQ(layout.EndOffset(), layout.numel());
  EXPECT_EQ(ErrorOf([] {
              Layout::Contiguous({int64_t{1} << 40, int64_t{1} << 40}).numel();
            }),
            "shape: (1099511627776, 1099511627776) has more elements than 64 bits count");
}

TEST(Layout, ErrorsNameTheOpAndWhatIsLegal) {
  const Layout layout = Layout::Contiguous({2, 3});
  const int twice[] = {1, 1}, short_order[] = {0};
  Layout result;
  EXPECT_EQ(ErrorOf([&] { layout.Transpose(-3, 0); }), "transpose: dim -3 is outside [-2, 2)");
  EXPECT_EQ(ErrorOf([&] { layout.Permute(twice); }), "permute: dim 1 is named twice");
  EXPECT_EQ(ErrorOf([&] { layout.Permute(short_order); }), "permute: order has 1 dims, the tensor has shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { layout.Narrow(0, -1, 1); }), "narrow: [-1, -1 + 1) is outside dim 0 of shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { layout.Narrow(0, 1, INT64_MAX); }),
            "narrow: [1, 1 + 9223372036854775807) is outside dim 0 of shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { layout.Select(1, 3); }), "select: index 3 is outside dim 1 of shape (2, 3)");
  EXPECT_EQ(ErrorOf([&] { layout.Expand({3}); }), "expand: shape (2, 3) does not expand to (3)");
  EXPECT_EQ(ErrorOf([&] { layout.TryReshape({5}, &result); }), "reshape: shape (2, 3) has 6 elements, (5) has 5");
  EXPECT_EQ(ErrorOf([&] { Layout::Contiguous({2, -1}); }), "shape: (2, -1) has a negative size");
  EXPECT_EQ(ErrorOf([&] { Shape{1, 1, 1, 1, 1, 1, 1}; }), "shape: rank 7 is above the maximum of 6");
}

TEST(Shapes, BroadcastByNumpysRule) {
  EXPECT_EQ(BroadcastShapes({3, 1}, {4}, "op"), (Shape{3, 4}));
  EXPECT_EQ(BroadcastShapes({}, {2, 0}, "op"), (Shape{2, 0}));
  EXPECT_EQ(BroadcastShapes({1}, {0}, "op"), (Shape{0}));
  EXPECT_EQ(ErrorOf([] { BroadcastShapes({2}, {0}, "op"); }),
            "op: shapes (2) and (0) do not broadcast (dim 0: 2 and 0)");
}

TEST(Shapes, ResolveFillsInTheOneOpenSize) {
  EXPECT_EQ(ResolveShape({2, -1}, 6, "op"), (Shape{2, 3}));
  EXPECT_EQ(ResolveShape({-1}, 0, "op"), (Shape{0}));
  EXPECT_EQ(ErrorOf([] {
              ResolveShape({-1, -1}, 6, "op");
            }),
            "op: shape (-1, -1) may hold one -1 and no other negative size");
  EXPECT_EQ(ErrorOf([] { ResolveShape({0, -1}, 0, "op"); }), "op: 0 elements do not fit shape (0, -1)");
}

}  // namespace
}  // namespace tessera::testing
