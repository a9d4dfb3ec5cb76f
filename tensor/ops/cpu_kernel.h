// SPDX-License-Identifier: Apache-2.0
// What CPU kernels share: dtype dispatch, conversion, fixed-order sums and strided loops; mathematics through cpu_math.h.
// Only `*_cpu.cc` files include it. Everything is local to the including file (see tensor/cpu_isa.h for why).
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/cpu_isa.h"
#include "tensor/ops/cpu_math.h"
#include "tensor/tensor.h"
#include "tensor/thread_pool.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// The type that values of T are computed in.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Acc = typename AccumulatorOf<T>::type;

TESSERA_ALWAYS_INLINE float Load(float x) { return x; }
TESSERA_ALWAYS_INLINE double Load(double x) { return x; }
TESSERA_ALWAYS_INLINE float Load(BFloat16 x) { return ToFloat(x); }
TESSERA_ALWAYS_INLINE float Load(Float16 x) { return ToFloat(x); }

template <class T, class A>
TESSERA_ALWAYS_INLINE T Store(A x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>) for the floating dtype. The checks in the op's .cc have refused the others.
template <class F>
TESSERA_ALWAYS_INLINE void DispatchFloating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kBF16:
      return f(TypeTag<BFloat16>{});
    case DType::kF16:
      return f(TypeTag<Float16>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    default:
      return;
  }
}

// The same for every dtype.
template <class F>
TESSERA_ALWAYS_INLINE void DispatchAny(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kI32:
      return f(TypeTag<int32_t>{});
    case DType::kI64:
      return f(TypeTag<int64_t>{});
    case DType::kU8:
      return f(TypeTag<uint8_t>{});
    default:
      return DispatchFloating(dtype, f);
  }
}

template <class F>
TESSERA_ALWAYS_INLINE void DispatchIndex(DType dtype, F&& f) {
  if (dtype == DType::kI32) return f(TypeTag<int32_t>{});
  if (dtype == DType::kI64) return f(TypeTag<int64_t>{});
}

// Sum of term(i) over [0, n) in 32 lanes added in a fixed order: vectorises, and gives the same bits on any thread.
template <class A, class Term>
TESSERA_ALWAYS_INLINE A SumOf(int64_t n, Term&& term) {
  constexpr int kLanes = 32;
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
#pragma GCC unroll 5  // so that each step's width is a constant
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class A>
TESSERA_ALWAYS_INLINE A MaxOrNan(A held, A value) {
  return (value > held) | (value != value) ? value : held;  // once held is NaN, both tests fail and it stays
}

// Largest term(i) over [0, n); `lowest` when n is 0. A NaN anywhere makes the result NaN.
template <class A, class Term>
TESSERA_ALWAYS_INLINE A MaxOf(int64_t n, A lowest, Term&& term) {
  constexpr int kLanes = 32;
  A lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lowest;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = MaxOrNan(lanes[lane], static_cast<A>(term(i + lane)));
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = MaxOrNan(lanes[lane], static_cast<A>(term(i)));
#pragma GCC unroll 5  // so that each step's width is a constant
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] = MaxOrNan(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

// Rows of a tensor whose last dimension is dense: element offset of row `row` (row-major over the other dims).
class Rows {
 public:
  explicit Rows(const Layout& layout) : layout_(layout) {
    outer_ = layout.rank() - 1;
    width_ = layout.rank() == 0 ? 1 : layout.size(outer_);
    count_ = 1;
    for (int dim = 0; dim < outer_; ++dim) count_ *= layout.size(dim);
    contiguous_ = layout.IsContiguous();
  }
  int64_t count() const { return count_; }
  int64_t width() const { return width_; }
  TESSERA_ALWAYS_INLINE int64_t offset(int64_t row) const {
    if (contiguous_) return layout_.offset() + row * width_;
    int64_t offset = layout_.offset();
    for (int dim = outer_ - 1; dim >= 0; --dim) {
      offset += row % layout_.size(dim) * layout_.stride(dim);
      row /= layout_.size(dim);
    }
    return offset;
  }

 private:
  Layout layout_;
  int outer_;
  int64_t width_, count_;
  bool contiguous_;
};

// How many rows of this width one chunk of a parallel loop takes: about 16k elements, a fixed function of the width.
TESSERA_ALWAYS_INLINE int64_t RowGrain(int64_t width) {
  constexpr int64_t kElements = 16384;
  return width >= kElements ? 1 : kElements / (width > 0 ? width : 1);
}

// Walks N operands of one shape with any strides: calls run(offsets, n, strides) for inner runs of n elements, in
// parallel. Dims that every operand can join are joined first, so dense tensors are one run cut into chunks.
template <int N>
struct StridedLoop {
  Shape shape;
  int64_t strides[N][kMaxRank];
  int64_t start[N];

  explicit StridedLoop(const Layout* const (&layouts)[N]) {
    for (int operand = 0; operand < N; ++operand) start[operand] = layouts[operand]->offset();
    const Layout& first = *layouts[0];
    int rank = 0;
    int64_t sizes[kMaxRank];
    for (int dim = 0; dim < first.rank(); ++dim) {
      if (first.size(dim) == 1) continue;
      bool joins = rank > 0;
      for (int operand = 0; operand < N && joins; ++operand) {
        joins = strides[operand][rank - 1] == layouts[operand]->stride(dim) * first.size(dim);
      }
      if (joins) {
        sizes[rank - 1] *= first.size(dim);
      } else {
        sizes[rank++] = first.size(dim);
      }
      for (int operand = 0; operand < N; ++operand) strides[operand][rank - 1] = layouts[operand]->stride(dim);
    }
    if (rank == 0) {
      sizes[rank++] = first.numel();
      for (int operand = 0; operand < N; ++operand) strides[operand][0] = 1;
    }
    for (int dim = 0; dim < rank; ++dim) shape.push_back(sizes[dim]);
  }

  // `work`: how many element operations one element stands for, when it is more than one; chunks get smaller.
  template <class Run>
  void ForEach(Run&& run, int64_t work = 1) const {
    const int inner = shape.rank() - 1;
    const int64_t width = shape[inner];
    int64_t outer = 1;
    for (int dim = 0; dim < inner; ++dim) outer *= shape[dim];
    if (outer == 0 || width == 0) return;
    int64_t steps[N];
    for (int operand = 0; operand < N; ++operand) steps[operand] = strides[operand][inner];
    if (outer == 1) {
      ParallelFor(width, RowGrain(work), [&](int64_t begin, int64_t end) {
        int64_t offsets[N];
        for (int operand = 0; operand < N; ++operand) offsets[operand] = start[operand] + begin * steps[operand];
        run(offsets, end - begin, steps);
      });
      return;
    }
    ParallelFor(outer, RowGrain(width * work), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t offsets[N];
        for (int operand = 0; operand < N; ++operand) offsets[operand] = start[operand];
        int64_t rest = row;
        for (int dim = inner - 1; dim >= 0; --dim) {
          const int64_t index = rest % shape[dim];
          rest /= shape[dim];
          for (int operand = 0; operand < N; ++operand) offsets[operand] += index * strides[operand][dim];
        }
        run(offsets, width, steps);
      }
    });
  }
};

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
