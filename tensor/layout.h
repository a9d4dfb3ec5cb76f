// SPDX-License-Identifier: Apache-2.0
// Shape, strides and offset of a tensor, and the algebra that makes views: all counted in elements, all 64-bit.
//
//   Layout m = Layout::Contiguous({2, 3});
//   m.Transpose(0, 1).strides() -> (1, 3);   m.Narrow(1, 1, 2).offset() -> 1
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tessera {

inline constexpr int kMaxRank = 6;

// Up to six sizes; a value without heap memory.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return sizes_[static_cast<size_t>(dim)]; }
  int64_t& operator[](int dim) { return sizes_[static_cast<size_t>(dim)]; }
  int64_t back() const { return (*this)[rank_ - 1]; }
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }
  int64_t numel() const;  // product of the sizes; 1 for rank 0
  void push_back(int64_t size);
  std::string ToString() const;  // "(2, 3)"
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

class Layout {
 public:
  Layout() = default;
  Layout(const Shape& shape, const Shape& strides, int64_t offset)
      : shape_(shape), strides_(strides), offset_(offset) {}
  static Layout Contiguous(const Shape& shape, int64_t offset = 0);

  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  int64_t offset() const { return offset_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim]; }
  int64_t numel() const { return shape_.numel(); }

  // Row-major without gaps. Dimensions of size 1 and empty tensors place no demand on strides.
  bool IsContiguous() const;
  // The last dimension is dense, so that a row is one run of memory.
  bool HasDenseRows() const { return rank() == 0 || size(rank() - 1) <= 1 || stride(rank() - 1) == 1; }
  // Two different indexes may name the same element (stride 0 over a size above 1).
  bool HasOverlap() const;
  // One past the highest element index that this layout reaches (0 when empty).
  int64_t EndOffset() const;

  // Each throws Error naming `op` when the request is not legal. Negative dims count from the end.
  Layout Transpose(int dim0, int dim1) const;
  Layout Permute(std::span<const int> order) const;
  Layout Narrow(int dim, int64_t start, int64_t length) const;
  Layout Expand(const Shape& shape) const;
  Layout Select(int dim, int64_t index) const;  // drops the dimension
  // A view with another shape; false when these strides do not allow one without a copy.
  bool TryReshape(const Shape& shape, Layout* result) const;

  std::string ToString() const;  // "shape (2, 3) strides (3, 1) offset 0"
  bool operator==(const Layout& other) const = default;

 private:
  Shape shape_;
  Shape strides_;
  int64_t offset_ = 0;
};

// dim in [-rank, rank) -> [0, rank); throws naming op otherwise.
int NormalizeDim(int dim, int rank, const char* op);
// The shape that a and b broadcast to, by NumPy's rule; throws naming op when they do not.
Shape BroadcastShapes(const Shape& a, const Shape& b, const char* op);
// How many rows a tensor of this shape has: the product of all sizes but the last (1 for rank 0).
int64_t RowCount(const Shape& shape);
// Shape with one -1 resolved against numel.
Shape ResolveShape(const Shape& shape, int64_t numel, const char* op);

}  // namespace tessera
