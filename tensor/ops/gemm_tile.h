// SPDX-License-Identifier: Apache-2.0
// The innermost product of gemm_cpu.cc: a packed panel of A times a packed panel of B, added to a tile of C.
//
// With AVX2 and AVX-512 the tile of C stays in registers for the whole of a K piece: 6 x 2 or 14 x 2 vectors, which
// with two vectors of B and the broadcast element of A fill the register file. Plain C++ over GCC's vector types
// compiles to one fused multiply-add per cycle and port. Everywhere else the panels are larger and Eigen multiplies
// them.
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/half.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// Cache lines to ask for while multiplying, one for each k: memory works while the cores do.
struct LinesAhead {
  const char* line = nullptr;
  int64_t step_bytes = 0, count = 0;
};

// c (h x w) = alpha * a b, or += it. a: the k-th column (h elements) at a + k * h; b: the k-th row at b + k * ldb,
// readable over the full width of a tile; with `packed` (w is full then) the rows are also stored there, densely.
template <class T>
struct TileProduct {
  int64_t k_count;
  const T* a;
  const T* b;
  int64_t ldb;
  T* c;
  int64_t ldc;
  T alpha;
  bool accumulate;
  T* packed = nullptr;
  LinesAhead ahead = {};
};

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
inline constexpr bool kReadsRowsInPlace = true;        // b may be unpacked rows

template <class T>
struct Tile {
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kCols = kTileVectors * kWidth;
  typedef T Vector __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};

// c (H x V vectors) = alpha * a b, or += with `accumulate`. With kPack the rows of b are also stored in `packed`, for
// the tiles below that need them again: the stores fit between the multiply-adds, where a copy on its own would wait
// for memory.
template <class T, int H, int V, bool kPack>
__attribute__((noinline)) void MultiplyTile(const TileProduct<T>& tile) {
  using Vector = typename Tile<T>::Vector;
  constexpr int kWidth = Tile<T>::kWidth;
  Vector sum[H][V];
  T* c = tile.c;
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
    __builtin_prefetch(c + i * tile.ldc, 1);
    if constexpr (V == 2) __builtin_prefetch(c + i * tile.ldc + 2 * kWidth - 1, 1);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = Vector{};
  }
  const T *a = tile.a, *b = tile.b;
  T* packed = tile.packed;
  const int64_t ldb = tile.ldb, k_count = tile.k_count;
  const char* ahead = tile.ahead.line;
  const int64_t ahead_step = tile.ahead.step_bytes, ahead_count = tile.ahead.count;
  for (int64_t k = 0; k < k_count; ++k) {
    Vector row[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      row[v] = *reinterpret_cast<const Vector*>(b + v * kWidth);
      if constexpr (kPack) *reinterpret_cast<Vector*>(packed + v * kWidth) = row[v];
    }
    __builtin_prefetch(ahead, 0, 2);
    ahead += k < ahead_count ? ahead_step : 0;
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const Vector element = a[i] - Vector{};  // a broadcast: x - 0 is x for every x, so the subtraction goes away
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += element * row[v];
    }
    a += H;
    b += ldb;
    if constexpr (kPack) packed += V * kWidth;
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Vector* out = reinterpret_cast<Vector*>(c + i * tile.ldc + v * kWidth);
      *out = tile.accumulate ? *out + tile.alpha * sum[i][v] : tile.alpha * sum[i][v];
    }
  }
}

template <class T>
using TileKernel = void (*)(const TileProduct<T>&);

template <class T, int V, bool kPack, class Heights = std::make_integer_sequence<int, kTileRows>>
struct TileKernels;
template <class T, int V, bool kPack, int... I>
struct TileKernels<T, V, kPack, std::integer_sequence<int, I...>> {
  static constexpr TileKernel<T> kByHeight[] = {&MultiplyTile<T, I + 1, V, kPack>...};
};

template <class T>
TESSERA_ALWAYS_INLINE void MultiplyPanels(int h, int w, const TileProduct<T>& tile) {
  constexpr int kCols = Tile<T>::kCols;
  if (tile.packed != nullptr) return TileKernels<T, 2, true>::kByHeight[h - 1](tile);
  if (w == kCols) return TileKernels<T, 2, false>::kByHeight[h - 1](tile);
  T edge[kTileRows * kCols];
  TileProduct<T> inner = tile;
  inner.c = edge;
  inner.ldc = kCols;
  inner.accumulate = false;
  if (w <= Tile<T>::kWidth) {
    TileKernels<T, 1, false>::kByHeight[h - 1](inner);
  } else {
    TileKernels<T, 2, false>::kByHeight[h - 1](inner);
  }
  for (int i = 0; i < h; ++i) {
    T* c = tile.c + i * tile.ldc;
    for (int j = 0; j < w; ++j) c[j] = tile.accumulate ? c[j] + edge[i * kCols + j] : edge[i * kCols + j];
  }
}

#else  // Eigen

inline constexpr int kTileRows = 64;
inline constexpr int kMaxRowPanels = 4;
inline constexpr bool kReadsRowsInPlace = false;

template <class T>
struct Tile {
  static constexpr int kCols = 256;
};

template <class T>
void MultiplyPanels(int h, int w, const TileProduct<T>& tile);  // in gemm_cpu.cc, the one file with Eigen

#endif

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
