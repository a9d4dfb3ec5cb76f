// SPDX-License-Identifier: Apache-2.0
// Packing for gemm_cpu.cc: copies a panel of A or B, whatever its dtype and strides, into the order in which the innermost
// product reads it. Both operands are the same thing here: `lanes` (rows of A, columns of B) by k.
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
// Shared panels lie in other cores' caches from the product before. Asking for a line that many k before it is written
// makes packing five times as fast.
inline constexpr int64_t kWriteAhead = 32;

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

// Four f32 or two f64: what one 128-bit lane of a vector register holds. Low and High unpack inside these lanes.
TESSERA_ALWAYS_INLINE __m128 LoadLane(const float* x) { return _mm_loadu_ps(x); }
TESSERA_ALWAYS_INLINE __m128 LoadLane(const BFloat16* x) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}
TESSERA_ALWAYS_INLINE __m128 LoadLane(const Float16* x) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
}
TESSERA_ALWAYS_INLINE __m128d LoadLane(const double* x) { return _mm_loadu_pd(x); }

#if defined(__AVX512F__)
using F32Vector = __m512;
using F64Vector = __m512d;
TESSERA_ALWAYS_INLINE __m512 JoinLanes(__m128 a, __m128 b, __m128 c, __m128 d) {
  const __m512 ab = _mm512_insertf32x4(_mm512_castps128_ps512(a), b, 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(ab, c, 2), d, 3);
}
TESSERA_ALWAYS_INLINE __m512d JoinLanes(__m128d a, __m128d b, __m128d c, __m128d d) {
  const __m512d ab = _mm512_insertf64x2(_mm512_castpd128_pd512(a), b, 1);
  return _mm512_insertf64x2(_mm512_insertf64x2(ab, c, 2), d, 3);
}
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
TESSERA_ALWAYS_INLINE __m512d AsF64(__m512 a) { return _mm512_castps_pd(a); }
TESSERA_ALWAYS_INLINE void StoreVector(float* out, __m512d x) { _mm512_storeu_ps(out, _mm512_castpd_ps(x)); }
TESSERA_ALWAYS_INLINE void StoreVector(double* out, __m512d x) { _mm512_storeu_pd(out, x); }
#else
using F32Vector = __m256;
using F64Vector = __m256d;
TESSERA_ALWAYS_INLINE __m256 JoinLanes(__m128 a, __m128 b) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(a), b, 1);
}
TESSERA_ALWAYS_INLINE __m256d JoinLanes(__m128d a, __m128d b) {
  return _mm256_insertf128_pd(_mm256_castpd128_pd256(a), b, 1);
}
TESSERA_ALWAYS_INLINE __m256 Low(__m256 a, __m256 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
}
TESSERA_ALWAYS_INLINE __m256 High(__m256 a, __m256 b) {
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
TESSERA_ALWAYS_INLINE __m256d Low(__m256d a, __m256d b) {
  return __builtin_shufflevector(a, b, 0, 4, 2, 6);
}
TESSERA_ALWAYS_INLINE __m256d High(__m256d a, __m256d b) {
  return __builtin_shufflevector(a, b, 1, 5, 3, 7);
}
TESSERA_ALWAYS_INLINE __m256d AsF64(__m256 a) { return _mm256_castps_pd(a); }
TESSERA_ALWAYS_INLINE void StoreVector(float* out, __m256d x) { _mm256_storeu_ps(out, _mm256_castpd_ps(x)); }
TESSERA_ALWAYS_INLINE void StoreVector(double* out, __m256d x) { _mm256_storeu_pd(out, x); }
#endif

// One 128-bit lane each of rows step, step + 4, ... (step + 2 for f64); zero for rows that are not there.
template <class T, class S>
TESSERA_ALWAYS_INLINE auto LoadTransposing(const S* x, int64_t lane_stride, int step, int rows) {
  constexpr int kPerLane = 16 / static_cast<int>(sizeof(T));
  const auto load = [&](int part) __attribute__((always_inline)) {
    const int row = step + part * kPerLane;
    return row < rows ? LoadLane(x + row * lane_stride) : decltype(LoadLane(x)){};
  };
#if defined(__AVX512F__)
  return JoinLanes(load(0), load(1), load(2), load(3));
#else
  return JoinLanes(load(0), load(1));
#endif
}

// Up to one vector of lanes by 4 values of k (2 for f64), transposed by unpacking inside the 128-bit lanes.
template <class T, class S>
TESSERA_ALWAYS_INLINE void TransposeBlock(const S* x, int64_t lane_stride, int rows, T* out, int64_t out_stride) {
  if constexpr (sizeof(T) == 4) {
    const F32Vector v0 = LoadTransposing<T>(x, lane_stride, 0, rows), v1 = LoadTransposing<T>(x, lane_stride, 1, rows);
    const F32Vector v2 = LoadTransposing<T>(x, lane_stride, 2, rows), v3 = LoadTransposing<T>(x, lane_stride, 3, rows);
    const F64Vector t0 = AsF64(Low(v0, v1)), t1 = AsF64(High(v0, v1));
    const F64Vector t2 = AsF64(Low(v2, v3)), t3 = AsF64(High(v2, v3));
    StoreVector(out, Low(t0, t2));
    StoreVector(out + out_stride, High(t0, t2));
    StoreVector(out + 2 * out_stride, Low(t1, t3));
    StoreVector(out + 3 * out_stride, High(t1, t3));
  } else {
    const F64Vector v0 = LoadTransposing<T>(x, lane_stride, 0, rows), v1 = LoadTransposing<T>(x, lane_stride, 1, rows);
    StoreVector(out, Low(v0, v1));
    StoreVector(out + out_stride, High(v0, v1));
  }
}

// k is dense. Returns how many k were packed; the rest is left over. Groups of lanes go from last to first: a group that is
// not full writes zeros into the first lanes of the next k, and those are written again, rightly, by the groups before it.
template <class T, class S>
int64_t PackTransposing(const S* x, int64_t lane_stride, int lanes, int64_t k_count, T* out, int64_t out_stride) {
  constexpr int kWidth = Tile<T>::kWidth, kStep = 16 / static_cast<int>(sizeof(T));
  constexpr int kTallRest = kTileRows % kWidth;  // of the two heights that row panels have
  const int64_t whole = k_count / kStep * kStep;
  for (int first = (lanes - 1) / kWidth * kWidth; first >= 0; first -= kWidth) {
    const S* from = x + first * lane_stride;
    T* to = out + first;
    const auto pack = [&](int rows) __attribute__((always_inline)) {
      for (int64_t k = 0; k < whole; k += kStep) {
        for (int i = 0; i < kStep; ++i) __builtin_prefetch(to + (k + kWriteAhead + i) * out_stride, 1);
        TransposeBlock<T, S>(from + k, lane_stride, rows, to + k * out_stride, out_stride);
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
    for (int lane = 0; lane < kLanes; lane += 64 / static_cast<int>(sizeof(T))) {
      __builtin_prefetch(out + (k + kWriteAhead) * out_stride + lane, 1);
    }
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
  DispatchFloating(x.dtype, [&](auto tag) __attribute__((always_inline)) {
    using S = typename decltype(tag)::type;
    if constexpr (sizeof(S) <= sizeof(T)) f(static_cast<const S*>(x.data) + lane * x.lane_stride + k * x.k_stride);
  });
}

// One panel. With out_stride > lanes the rest of each row is zeroed.
template <class T>
void Pack(const Lanes& x, int64_t first_lane, int lanes, int64_t first_k, int64_t k_count, T* out, int64_t out_stride) {
  AtElement<T>(x, first_lane, first_k, [&](const auto* from) {
    PackAs(from, x.lane_stride, x.k_stride, lanes, k_count, out, out_stride);
  });
  if (lanes == out_stride) return;
  for (int64_t k = 0; k < k_count; ++k) {
    for (int64_t lane = lanes; lane < out_stride; ++lane) out[k * out_stride + lane] = 0;
  }
}

// Several neighbouring panels of dense lanes at once, a few k at a time: each panel's share of a row is less than a cache
// line or two, and row by row whole lines are used while they are at hand.
template <class T>
void PackDenseLanes(const Lanes& x, const Cut& cut, int64_t begin, int64_t end, int64_t first_k, int64_t k_count, T* out,
                    int64_t panel_numel) {
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

// The cache lines of a panel's source, dealt out to the products before it: each takes one line of every row.
class PanelAhead {
 public:
  PanelAhead() = default;
  PanelAhead(const Lanes& x, int64_t first_lane, int lanes, int64_t first_k, int64_t k_count) {
    const int64_t item = ItemSize(x.dtype);
    const bool along_k = x.k_stride == 1;
    if (!along_k && x.lane_stride != 1) return;
    next_.line = static_cast<const char*>(x.data) + (first_lane * x.lane_stride + first_k * x.k_stride) * item;
    next_.step_bytes = (along_k ? x.lane_stride : x.k_stride) * item;
    next_.count = along_k ? lanes : k_count;
    lines_ = ((along_k ? k_count : lanes) * item + kLine - 1) / kLine;
  }

  TESSERA_ALWAYS_INLINE LinesAhead Next() {
    const LinesAhead now = next_;
    if (--lines_ > 0) {
      next_.line += kLine;
    } else {
      next_.step_bytes = 0;  // all are on their way: the last one again and again costs nothing
    }
    return now;
  }

 private:
  static constexpr int64_t kLine = 64;
  LinesAhead next_;
  int64_t lines_ = 0;
};

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
