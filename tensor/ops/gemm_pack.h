// SPDX-License-Identifier: Apache-2.0
// Packing for gemm_cpu.cc: copies a panel of A or B, whatever its dtype and strides, into the order in which the
// innermost product reads it. Both operands are the same thing here: `lanes` (rows of A, columns of B) by k.
//
//   out[k * out_stride + lane] = x[lane * lane_stride + k * k_stride], converted to T
//
// Up to one vector behind a panel may be overwritten, so buffers have slack (kPackSlack) after each panel.
#pragma once

#include <cstdint>

#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/gemm_tile.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

inline constexpr int kPackSlack = 16;

// [0, n) in `parts` nearly equal parts.
struct Cut {
  int64_t n = 0, parts = 1;
  TESSERA_ALWAYS_INLINE int64_t begin(int64_t part) const { return part * n / parts; }
};

// A matrix seen as lanes by k.
struct Lanes {
  const void* data;
  DType dtype;
  int64_t lane_stride, k_stride;
};

#if defined(__AVX2__)

#if defined(__AVX512F__)
using F32Vector = __m512;
using F64Vector = __m512d;
TESSERA_ALWAYS_INLINE __m512 LoadVector(const float* x) { return _mm512_loadu_ps(x); }
TESSERA_ALWAYS_INLINE __m512d LoadVector(const double* x) { return _mm512_loadu_pd(x); }
TESSERA_ALWAYS_INLINE __m512 LoadVector(const Float16* x) {
  return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
TESSERA_ALWAYS_INLINE void StoreVector(float* out, __m512 x) { _mm512_storeu_ps(out, x); }
TESSERA_ALWAYS_INLINE void StoreVector(double* out, __m512d x) { _mm512_storeu_pd(out, x); }
#else
using F32Vector = __m256;
using F64Vector = __m256d;
TESSERA_ALWAYS_INLINE __m256 LoadVector(const float* x) { return _mm256_loadu_ps(x); }
TESSERA_ALWAYS_INLINE __m256d LoadVector(const double* x) { return _mm256_loadu_pd(x); }
TESSERA_ALWAYS_INLINE __m256 LoadVector(const Float16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
TESSERA_ALWAYS_INLINE void StoreVector(float* out, __m256 x) { _mm256_storeu_ps(out, x); }
TESSERA_ALWAYS_INLINE void StoreVector(double* out, __m256d x) { _mm256_storeu_pd(out, x); }
#endif

// A vector of neighbouring values, converted.
TESSERA_ALWAYS_INLINE F32Vector LoadVector(const BFloat16* x) {
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
  Halves bits;
  __builtin_memcpy(&bits, x, sizeof bits);
  return (F32Vector)(__builtin_convertvector(bits, Words) << 16);
}

// A vector register is kParts lanes of 128 bits, a lane is 4 f32 or 2 f64.
inline constexpr int kParts = kVectorBytes / 16;

// Lane i of x[j] becomes lane j of out[i].
template <class V>
TESSERA_ALWAYS_INLINE void TransposeParts(const V (&x)[kParts], V (&out)[kParts]) {
#if defined(__AVX512F__)
  const F64Vector x0 = (F64Vector)x[0], x1 = (F64Vector)x[1], x2 = (F64Vector)x[2], x3 = (F64Vector)x[3];
  const F64Vector a = __builtin_shufflevector(x0, x1, 0, 1, 2, 3, 8, 9, 10, 11);
  const F64Vector b = __builtin_shufflevector(x0, x1, 4, 5, 6, 7, 12, 13, 14, 15);
  const F64Vector c = __builtin_shufflevector(x2, x3, 0, 1, 2, 3, 8, 9, 10, 11);
  const F64Vector d = __builtin_shufflevector(x2, x3, 4, 5, 6, 7, 12, 13, 14, 15);
  out[0] = (V)__builtin_shufflevector(a, c, 0, 1, 4, 5, 8, 9, 12, 13);
  out[1] = (V)__builtin_shufflevector(a, c, 2, 3, 6, 7, 10, 11, 14, 15);
  out[2] = (V)__builtin_shufflevector(b, d, 0, 1, 4, 5, 8, 9, 12, 13);
  out[3] = (V)__builtin_shufflevector(b, d, 2, 3, 6, 7, 10, 11, 14, 15);
#else
  const F64Vector x0 = (F64Vector)x[0], x1 = (F64Vector)x[1];
  out[0] = (V)__builtin_shufflevector(x0, x1, 0, 1, 4, 5);
  out[1] = (V)__builtin_shufflevector(x0, x1, 2, 3, 6, 7);
#endif
}

// Alternating elements of a and b from the lower, or upper, half of each 128-bit lane.
#if defined(__AVX512F__)
TESSERA_ALWAYS_INLINE __m512 Low(__m512 a, __m512 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
TESSERA_ALWAYS_INLINE __m512 High(__m512 a, __m512 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
TESSERA_ALWAYS_INLINE __m512d Low(__m512d a, __m512d b) {
  return __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
}
TESSERA_ALWAYS_INLINE __m512d High(__m512d a, __m512d b) {
  return __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}
#else
TESSERA_ALWAYS_INLINE __m256 Low(__m256 a, __m256 b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
TESSERA_ALWAYS_INLINE __m256 High(__m256 a, __m256 b) {
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
TESSERA_ALWAYS_INLINE __m256d Low(__m256d a, __m256d b) { return __builtin_shufflevector(a, b, 0, 4, 2, 6); }
TESSERA_ALWAYS_INLINE __m256d High(__m256d a, __m256d b) { return __builtin_shufflevector(a, b, 1, 5, 3, 7); }
#endif

// The same for the elements inside each 128-bit lane.
TESSERA_ALWAYS_INLINE void TransposeInParts(F64Vector (&x)[2]) {
  const F64Vector a = x[0], b = x[1];
  x[0] = Low(a, b);
  x[1] = High(a, b);
}
TESSERA_ALWAYS_INLINE void TransposeInParts(F32Vector (&x)[4]) {
  const F64Vector a = (F64Vector)Low(x[0], x[1]), b = (F64Vector)High(x[0], x[1]);
  const F64Vector c = (F64Vector)Low(x[2], x[3]), d = (F64Vector)High(x[2], x[3]);
  x[0] = (F32Vector)Low(a, c);
  x[1] = (F32Vector)High(a, c);
  x[2] = (F32Vector)Low(b, d);
  x[3] = (F32Vector)High(b, d);
}

// A square of kWidth rows by kWidth values of k, transposed; rows that are not there count as zeros. Each row is read
// by one load: with row distances of a multiple of 4 KiB all rows lie in one set of the first-level cache, which cannot
// hold them.
template <class T, class S>
TESSERA_ALWAYS_INLINE void TransposeSquare(const S* x, int64_t lane_stride, int rows, T* out, int64_t out_stride) {
  using Vector = decltype(LoadVector(x));
  constexpr int kPerPart = 16 / static_cast<int>(sizeof(T));
  Vector part[kParts][kPerPart];
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPerPart; ++j) {
      const int row = i * kPerPart + j;
      part[i][j] = row < rows ? LoadVector(x + row * lane_stride) : Vector{};
    }
    TransposeInParts(part[i]);
  }
  Vector column[kPerPart][kParts];
#pragma GCC unroll 4
  for (int j = 0; j < kPerPart; ++j) {
    Vector row_parts[kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) row_parts[i] = part[i][j];
    TransposeParts(row_parts, column[j]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPerPart; ++j) StoreVector(out + (i * kPerPart + j) * out_stride, column[j][i]);  // k ascends
  }
}

// k is dense. Returns how many k were packed; the rest is left over. Groups of lanes go from last to first: a group
// that is not full writes zeros into the first lanes of the next k, and those are written again, rightly, by the groups
// before it.
template <class T, class S>
int64_t PackTransposing(const S* x, int64_t lane_stride, int lanes, int64_t k_count, T* out, int64_t out_stride) {
  constexpr int kWidth = Tile<T>::kWidth;
  constexpr int kTallRest = kTileRows % kWidth;  // of the two heights that row panels have
  const int64_t whole = k_count / kWidth * kWidth;
  for (int first = (lanes - 1) / kWidth * kWidth; first >= 0; first -= kWidth) {
    const S* from = x + first * lane_stride;
    T* to = out + first;
    const auto pack = [&](int rows) __attribute__((always_inline)) {
      for (int64_t k = 0; k < whole; k += kWidth) {
        TransposeSquare<T, S>(from + k, lane_stride, rows, to + k * out_stride, out_stride);
      }
    };
    const int rows = lanes - first;
    if (rows >= kWidth) {
      pack(kWidth);
    } else if (rows == kTallRest) {
      pack(kTallRest);
    } else if (rows == kTallRest - 1) {
      pack(kTallRest - 1);
    } else {
      pack(rows);
    }
  }
  return whole;
}

#endif

// Lanes are dense: rows of a fixed width.
template <int kLanes, class T, class S>
TESSERA_ALWAYS_INLINE void PackRows(const S* x, int64_t k_stride, int64_t k_count, T* out, int64_t out_stride) {
  for (int64_t k = 0; k < k_count; ++k) {
    T row[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) row[lane] = static_cast<T>(Load(x[k * k_stride + lane]));
    __builtin_memcpy(out + k * out_stride, row, sizeof row);
  }
}

template <class T, class S>
void PackAny(const S* x, int64_t lane_stride, int64_t k_stride, int lanes, int64_t k_begin, int64_t k_end, T* out,
             int64_t out_stride) {
  for (int64_t k = k_begin; k < k_end; ++k) {
    for (int lane = 0; lane < lanes; ++lane) {
      out[k * out_stride + lane] = static_cast<T>(Load(x[lane * lane_stride + k * k_stride]));
    }
  }
}

template <class T, class S>
void PackAs(const S* x, int64_t lane_stride, int64_t k_stride, int lanes, int64_t k_count, T* out, int64_t out_stride) {
  int64_t done = 0;
  if (lane_stride == 1 && lanes == Tile<T>::kCols) {
    PackRows<Tile<T>::kCols>(x, k_stride, k_count, out, out_stride);
    done = k_count;
  }
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 4 || std::is_same_v<S, double>) {
    if (k_stride == 1 && done == 0) done = PackTransposing(x, lane_stride, lanes, k_count, out, out_stride);
  }
#endif
  PackAny(x, lane_stride, k_stride, lanes, done, k_count, out, out_stride);
}

// Calls f with a typed pointer to the element. f64 operands are never packed to f32: the sum would be f64 then.
template <class T, class F>
TESSERA_ALWAYS_INLINE void AtElement(const Lanes& x, int64_t lane, int64_t k, F&& f) {
  DispatchFloating(
      x.dtype, [&](auto tag) __attribute__((always_inline)) {
        using S = typename decltype(tag)::type;
        if constexpr (sizeof(S) <= sizeof(T)) f(static_cast<const S*>(x.data) + lane * x.lane_stride + k * x.k_stride);
      });
}

// One panel. With out_stride > lanes the rest of each row is zeroed.
template <class T>
void Pack(const Lanes& x, int64_t first_lane, int lanes, int64_t first_k, int64_t k_count, T* out, int64_t out_stride) {
  AtElement<T>(x, first_lane, first_k,
               [&](const auto* from) { PackAs(from, x.lane_stride, x.k_stride, lanes, k_count, out, out_stride); });
  if (lanes == out_stride) return;
  for (int64_t k = 0; k < k_count; ++k) {
    for (int64_t lane = lanes; lane < out_stride; ++lane) out[k * out_stride + lane] = 0;
  }
}

// Several neighbouring panels of dense lanes at once, a few k at a time: each panel's share of a row is less than a
// cache line or two, and row by row whole lines are used while they are at hand.
template <class T>
void PackDenseLanes(const Lanes& x, const Cut& cut, int64_t begin, int64_t end, int64_t first_k, int64_t k_count,
                    T* out, int64_t panel_numel) {
  constexpr int64_t kStrip = 8;
#if defined(__AVX2__)
  // Whole vectors are copied; what they hold too much is overwritten by the next k.
  constexpr int kLanes = (kTileRows + Tile<T>::kWidth - 1) / Tile<T>::kWidth * Tile<T>::kWidth;
#else
  constexpr int kLanes = kTileRows;
#endif
  for (int64_t k = 0; k < k_count; k += kStrip) {
    const int64_t count = k_count - k < kStrip ? k_count - k : kStrip;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t lane = cut.begin(panel), height = cut.begin(panel + 1) - lane;
      T* to = out + (panel - begin) * panel_numel + k * height;
      AtElement<T>(x, lane, first_k + k, [&](const auto* from) {
        if (lane + kLanes <= cut.n && kLanes - height < kPackSlack) {
          PackRows<kLanes>(from, x.k_stride, count, to, height);
        } else {
          PackAny(from, 1, x.k_stride, static_cast<int>(height), 0, count, to, height);
        }
      });
    }
  }
}

// The cache lines of what will be packed next, dealt out to the products before it: each takes one line of every row.
class LinesQueue {
 public:
  // `idle` is any address in use: what is asked for when nothing is left.
  TESSERA_ALWAYS_INLINE explicit LinesQueue(const void* idle) : idle_{static_cast<const char*>(idle), 0, 0} {}

  void Add(const Lanes& x, int64_t first_lane, int64_t lanes, int64_t first_k, int64_t k_count) {
    const int64_t item = ItemSize(x.dtype);
    const bool along_k = x.k_stride == 1;
    if (!along_k && x.lane_stride != 1) return;
    const int64_t first = first_lane * x.lane_stride + first_k * x.k_stride;
    Part& part = parts_[count_++];
    part.next = {static_cast<const char*>(x.data) + first * item, (along_k ? x.lane_stride : x.k_stride) * item,
                 along_k ? lanes : k_count};
    part.lines = ((along_k ? k_count : lanes) * item + kLine - 1) / kLine;
  }

  TESSERA_ALWAYS_INLINE LinesAhead Next() {
    if (at_ == count_) return idle_;
    Part& part = parts_[at_];
    const LinesAhead now = part.next;
    part.next.line += kLine;
    if (--part.lines == 0) ++at_;
    return now;
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Part {
    LinesAhead next;
    int64_t lines = 0;
  };
  Part parts_[2];
  int count_ = 0, at_ = 0;
  LinesAhead idle_;
};

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
