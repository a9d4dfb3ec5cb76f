// SPDX-License-Identifier: Apache-2.0
// The innermost product of gemm_cpu.cc: a packed panel of A times a packed panel of B, added to a tile of C.
//
// With AVX2 and AVX-512 the tile of C stays in registers for the whole of a K piece: 6 x 2 or 14 x 2 vectors, which with
// two vectors of B and the broadcast element of A fill the register file. Plain C++ over GCC's vector types compiles to
// one fused multiply-add per cycle and port. Everywhere else the panels are larger and Eigen multiplies them.
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/half.h"

#if !defined(__AVX2__)
// Each instruction set has an Eigen of its own: its templates are weak symbols, and the linker would keep one copy of all.
#define TESSERA_JOIN_(a, b) a##b
#define TESSERA_JOIN(a, b) TESSERA_JOIN_(a, b)
#define Eigen TESSERA_JOIN(Eigen_, TESSERA_ISA)
#include <Eigen/Core>
#endif

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kTileRows = 14;
#else
inline constexpr int kVectorBytes = 32;
inline constexpr int kTileRows = 6;
#endif
inline constexpr int kTileVectors = 2;
inline constexpr int kMaxRowPanels = 280 / kTileRows;  // of one block of C: with K pieces of 256, 280 KiB of A

template <class T>
struct Tile {
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kCols = kTileVectors * kWidth;
  typedef T Vector __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};

// c (H x V vectors) = alpha * a b, or += with `accumulate`. a: k-th column at a + k * H; b: k-th row at b + k * ldb.
template <class T, int H, int V>
__attribute__((noinline)) void MultiplyTile(int64_t k_count, const T* a, const T* b, int64_t ldb, T* c, int64_t ldc,
                                            T alpha, bool accumulate) {
  using Vector = typename Tile<T>::Vector;
  constexpr int kWidth = Tile<T>::kWidth;
  Vector sum[H][V];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
    __builtin_prefetch(c + i * ldc, 1);
    if constexpr (V == 2) __builtin_prefetch(c + i * ldc + 2 * kWidth - 1, 1);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = Vector{};
  }
  for (int64_t k = 0; k < k_count; ++k) {
    Vector row[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) row[v] = *reinterpret_cast<const Vector*>(b + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const Vector element = a[i] - Vector{};  // a broadcast: x - 0 is x for every x, so the subtraction goes away
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += element * row[v];
    }
    a += H;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Vector* out = reinterpret_cast<Vector*>(c + i * ldc + v * kWidth);
      *out = accumulate ? *out + alpha * sum[i][v] : alpha * sum[i][v];
    }
  }
}

template <class T>
using TileKernel = void (*)(int64_t, const T*, const T*, int64_t, T*, int64_t, T, bool);

template <class T, int V, class Heights>
struct TileKernels;
template <class T, int V, int... I>
struct TileKernels<T, V, std::integer_sequence<int, I...>> {
  static constexpr TileKernel<T> kByHeight[] = {&MultiplyTile<T, I + 1, V>...};
};

// c (h x w) = alpha * a b or += it, with h <= kTileRows and w <= Tile<T>::kCols; b is zero-padded to full rows if w is not
// full.
template <class T>
TESSERA_ALWAYS_INLINE void MultiplyPanels(int h, int w, int64_t k_count, const T* a, const T* b, int64_t ldb, T* c,
                                          int64_t ldc, T alpha, bool accumulate) {
  using Heights = std::make_integer_sequence<int, kTileRows>;
  constexpr int kCols = Tile<T>::kCols;
  if (w == kCols) {
    return TileKernels<T, 2, Heights>::kByHeight[h - 1](k_count, a, b, ldb, c, ldc, alpha, accumulate);
  }
  T edge[kTileRows * kCols];
  if (w <= Tile<T>::kWidth) {
    TileKernels<T, 1, Heights>::kByHeight[h - 1](k_count, a, b, ldb, edge, kCols, alpha, false);
  } else {
    TileKernels<T, 2, Heights>::kByHeight[h - 1](k_count, a, b, ldb, edge, kCols, alpha, false);
  }
  for (int i = 0; i < h; ++i) {
    for (int j = 0; j < w; ++j) c[i * ldc + j] = accumulate ? c[i * ldc + j] + edge[i * kCols + j] : edge[i * kCols + j];
  }
}

#else  // Eigen

inline constexpr int kTileRows = 64;
inline constexpr int kMaxRowPanels = 4;

template <class T>
struct Tile {
  static constexpr int kCols = 256;
};

template <class T>
void MultiplyPanels(int h, int w, int64_t k_count, const T* a, const T* b, int64_t ldb, T* c, int64_t ldc, T alpha,
                    bool accumulate) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  const Eigen::Map<const ColMajor> left(a, h, k_count);
  const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> right(b, k_count, w, Eigen::OuterStride<>(ldb));
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> out(c, h, w, Eigen::OuterStride<>(ldc));
  if (accumulate) {
    out.noalias() += alpha * left * right;
  } else {
    out.noalias() = alpha * left * right;
  }
}

#endif

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
