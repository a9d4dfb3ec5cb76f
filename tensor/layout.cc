// SPDX-License-Identifier: Apache-2.0
#include "tensor/layout.h"

#include <algorithm>

#include "tensor/error.h"

namespace tessera {

Shape::Shape(std::span<const int64_t> sizes) {
  if (sizes.size() > kMaxRank) throw Error(Str("shape: rank ", sizes.size(), " is above the maximum of ", kMaxRank));
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  rank_ = static_cast<int>(sizes.size());
}

int64_t Shape::numel() const {
  int64_t total = 1;
  bool overflow = false;
  for (int64_t size : *this) {
    if (size == 0) return 0;
    overflow |= __builtin_mul_overflow(total, size, &total);
  }
  if (overflow) throw Error(Str("shape: ", ToString(), " has more elements than 64 bits count"));
  return total;
}

void Shape::push_back(int64_t size) {
  if (rank_ == kMaxRank) throw Error(Str("shape: rank ", rank_ + 1, " is above the maximum of ", kMaxRank));
  sizes_[static_cast<size_t>(rank_++)] = size;
}

std::string Shape::ToString() const {
  std::string out = "(";
  for (int dim = 0; dim < rank_; ++dim) {
    if (dim > 0) out += ", ";
    out += std::to_string((*this)[dim]);
  }
  return out + ")";
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

Layout Layout::Contiguous(const Shape& shape, int64_t offset) {
  for (int64_t size : shape) {
    if (size < 0) throw Error(Str("shape: ", shape, " has a negative size"));
  }
  shape.numel();  // throws when 64 bits do not count them
  Shape strides = shape;
  int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    // Around a size of 0 the others may be anything, and no stride matters.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[dim], 1), &stride)) stride = 1;
  }
  return Layout(shape, strides, offset);
}

bool Layout::IsContiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (size(dim) == 1) continue;
    if (stride(dim) != expected) return false;
    expected *= size(dim);
  }
  return true;
}

bool Layout::HasOverlap() const {
  if (numel() == 0) return false;
  for (int dim = 0; dim < rank(); ++dim) {
    if (size(dim) > 1 && stride(dim) == 0) return true;
  }
  return false;
}

int64_t Layout::EndOffset() const {
  if (numel() == 0) return 0;
  int64_t last = offset_;
  for (int dim = 0; dim < rank(); ++dim) last += (size(dim) - 1) * stride(dim);
  return last + 1;
}

Layout Layout::Transpose(int dim0, int dim1) const {
  dim0 = NormalizeDim(dim0, rank(), "transpose");
  dim1 = NormalizeDim(dim1, rank(), "transpose");
  Layout result = *this;
  std::swap(result.shape_[dim0], result.shape_[dim1]);
  std::swap(result.strides_[dim0], result.strides_[dim1]);
  return result;
}

Layout Layout::Permute(std::span<const int> order) const {
  if (static_cast<int>(order.size()) != rank()) {
    throw Error(Str("permute: order has ", order.size(), " dims, the tensor has shape ", shape_));
  }
  Layout result = *this;
  std::array<bool, kMaxRank> seen{};
  for (int dim = 0; dim < rank(); ++dim) {
    const int from = NormalizeDim(order[static_cast<size_t>(dim)], rank(), "permute");
    if (seen[static_cast<size_t>(from)]) throw Error(Str("permute: dim ", from, " is named twice"));
    seen[static_cast<size_t>(from)] = true;
    result.shape_[dim] = shape_[from];
    result.strides_[dim] = strides_[from];
  }
  return result;
}

Layout Layout::Narrow(int dim, int64_t start, int64_t length) const {
  dim = NormalizeDim(dim, rank(), "narrow");
  if (start < 0 || length < 0 || start > size(dim) - length) {
    throw Error(Str("narrow: [", start, ", ", start, " + ", length, ") is outside dim ", dim, " of shape ", shape_));
  }
  Layout result = *this;
  result.shape_[dim] = length;
  if (length > 0) result.offset_ += start * stride(dim);
  return result;
}

Layout Layout::Select(int dim, int64_t index) const {
  dim = NormalizeDim(dim, rank(), "select");
  if (index < 0 || index >= size(dim)) {
    throw Error(Str("select: index ", index, " is outside dim ", dim, " of shape ", shape_));
  }
  Layout result;
  for (int d = 0; d < rank(); ++d) {
    if (d == dim) continue;
    result.shape_.push_back(size(d));
    result.strides_.push_back(stride(d));
  }
  result.offset_ = offset_ + index * stride(dim);
  return result;
}

Layout Layout::Expand(const Shape& shape) const {
  const int extra = shape.rank() - rank();
  if (extra < 0) throw Error(Str("expand: shape ", shape_, " does not expand to ", shape));
  Layout result(shape, shape, offset_);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const int own = dim - extra;
    if (own >= 0 && size(own) == shape[dim]) {
      result.strides_[dim] = stride(own);
    } else if (own < 0 || size(own) == 1) {
      result.strides_[dim] = 0;
    } else {
      throw Error(Str("expand: shape ", shape_, " does not expand to ", shape));
    }
  }
  return result;
}

bool Layout::TryReshape(const Shape& shape, Layout* result) const {
  if (shape.numel() != numel()) {
    throw Error(Str("reshape: shape ", shape_, " has ", numel(), " elements, ", shape, " has ", shape.numel()));
  }
  if (numel() == 0 || IsContiguous()) {
    *result = Contiguous(shape, offset_);
    return true;
  }
  // Old dims joined into runs that are dense inside, innermost first; each new dim must divide what is left of a run.
  std::array<int64_t, kMaxRank> run_size{}, run_stride{};
  size_t runs = 0;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (size(dim) == 1) continue;
    if (runs > 0 && stride(dim) == run_stride[runs - 1] * run_size[runs - 1]) {
      run_size[runs - 1] *= size(dim);
    } else {
      run_size[runs] = size(dim);
      run_stride[runs++] = stride(dim);
    }
  }
  Shape strides = shape;
  size_t run = 0;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    if (shape[dim] == 1) {
      strides[dim] = 1;
      continue;
    }
    if (run_size[run] == 1) ++run;
    if (run_size[run] % shape[dim] != 0) return false;
    strides[dim] = run_stride[run];
    run_stride[run] *= shape[dim];
    run_size[run] /= shape[dim];
  }
  *result = Layout(shape, strides, offset_);
  return true;
}

std::string Layout::ToString() const { return Str("shape ", shape_, " strides ", strides_, " offset ", offset_); }

int NormalizeDim(int dim, int rank, const char* op) {
  const int normalized = dim < 0 ? dim + rank : dim;
  if (normalized < 0 || normalized >= rank) {
    throw Error(Str(op, ": dim ", dim, " is outside [", -rank, ", ", rank, ")"));
  }
  return normalized;
}

Shape BroadcastShapes(const Shape& a, const Shape& b, const char* op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int dim = 0; dim < rank; ++dim) {
    const int ia = dim - (rank - a.rank());
    const int ib = dim - (rank - b.rank());
    const int64_t size_a = ia < 0 ? 1 : a[ia];
    const int64_t size_b = ib < 0 ? 1 : b[ib];
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      throw Error(
          Str(op, ": shapes ", a, " and ", b, " do not broadcast (dim ", dim, ": ", size_a, " and ", size_b, ")"));
    }
    result.push_back(size_a == 1 ? size_b : size_a);
  }
  return result;
}

int64_t RowCount(const Shape& shape) {
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < shape.rank(); ++dim) rows *= shape[dim];
  return rows;
}

Shape ResolveShape(const Shape& shape, int64_t numel, const char* op) {
  Shape result = shape;
  int open = -1;
  int64_t known = 1;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape[dim] == -1 && open < 0) {
      open = dim;
    } else if (shape[dim] < 0) {
      throw Error(Str(op, ": shape ", shape, " may hold one -1 and no other negative size"));
    } else {
      known *= shape[dim];
    }
  }
  if (open >= 0) {
    if (known == 0 || numel % known != 0) throw Error(Str(op, ": ", numel, " elements do not fit shape ", shape));
    result[open] = numel / known;
  }
  return result;
}

}  // namespace tessera
