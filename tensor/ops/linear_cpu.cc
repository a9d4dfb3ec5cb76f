// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/linear.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kCols = 64;      // of a thread's strip: its sums stay in registers
constexpr int64_t kRowBlock = 64;  // rows added up before they join the total, which is in f64

// sums[j] = dy[row, j] added over all rows, for `width` <= kCols columns.
template <class T>
TESSERA_ALWAYS_INLINE void SumStrip(const T* dy, int64_t row_stride, int64_t rows, int64_t width, double* sums) {
  for (int64_t j = 0; j < width; ++j) sums[j] = 0;
  for (int64_t first = 0; first < rows; first += kRowBlock) {
    const int64_t end = first + kRowBlock < rows ? first + kRowBlock : rows;
    Acc<T> block[kCols] = {};
    for (int64_t row = first; row < end; ++row) {
      const T* x = dy + row * row_stride;
      for (int64_t j = 0; j < width; ++j) block[j] += Load(x[j]);
    }
    for (int64_t j = 0; j < width; ++j) sums[j] += block[j];
  }
}

template <class T, class G>
void SumColumns(const ColumnSumArgs& args) {
  const T* dy = args.dy.as<T>();
  G* dbias = args.dbias.as<G>();
  const int64_t rows = args.dy.size(0), cols = args.dy.size(1);
  const int64_t row_stride = args.dy.stride(0), step = args.dbias.stride(0);
  // A chunk is at least 16k elements, in whole strips.
  const int64_t strips = (cols + kCols - 1) / kCols;
  const int64_t grain = RowGrain((rows > 0 ? rows : 1) * kCols);
  ParallelFor(strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t col = strip * kCols;
      const int64_t width = cols - col < kCols ? cols - col : kCols;
      double sums[kCols];
      if (width == kCols) {
        SumStrip(dy + col, row_stride, rows, kCols, sums);
      } else {
        SumStrip(dy + col, row_stride, rows, width, sums);
      }
      for (int64_t j = 0; j < width; ++j) {
        G& out = dbias[(col + j) * step];
        out = Store<G>(args.accumulate ? static_cast<double>(Load(out)) + sums[j] : sums[j]);
      }
    }
  });
}

}  // namespace

void ColumnSum(const ColumnSumArgs& args) {
  DispatchFloating(args.dy.dtype, [&](auto tag) {
    DispatchFloating(args.dbias.dtype,
                     [&](auto grad) { SumColumns<typename decltype(tag)::type, typename decltype(grad)::type>(args); });
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
