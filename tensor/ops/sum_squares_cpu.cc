// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/flat_step_cpu.h"
#include "tensor/ops/sum_squares.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr double kLargest = 1.7976931348623157e308;

struct Square {
  // The square of a value of 24 bits is exact in f64, so that fused or not makes no difference to the sum.
  template <class T>
  TESSERA_ALWAYS_INLINE static double AddTo(double sum, T x) {
    const double value = Load(x);
    return sum + value * value;
  }
  TESSERA_ALWAYS_INLINE static double AddTo(double sum, double x) { return Fma(x, x, sum); }
};

struct Plain {
  TESSERA_ALWAYS_INLINE static double AddTo(double sum, double x) { return sum + x; }
};

TESSERA_ALWAYS_INLINE double Fold(double* lanes) {
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class Term, class T>
double SumOfBlock(const T* x, int64_t n) {
  double lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] = Term::AddTo(lanes[lane], x[i + lane]);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = Term::AddTo(lanes[lane], x[i]);
  const double sum = Fold(lanes);
  if constexpr (std::is_same_v<T, double>) {
    if (!(sum <= kLargest)) {  // rare: was it an element, or the sum?
      bool all_finite = true;
      for (i = 0; i < n; ++i) all_finite = all_finite && x[i] - x[i] == 0;
      if (all_finite) return kLargest;
    }
  }
  return sum;
}

// One sum for each block of x; returns how many.
template <class Term, class T>
int64_t SumBlocks(const T* x, int64_t numel, double* sums) {
  constexpr int64_t kBlocks = 16;
  const int64_t blocks = (numel + kSumBlock - 1) / kSumBlock;
  ParallelFor(blocks, kBlocks, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kSumBlock;
      sums[block] = SumOfBlock<Term>(x + begin, numel - begin < kSumBlock ? numel - begin : kSumBlock);
    }
  });
  return blocks;
}

template <class T>
void Sum(const SumSquaresArgs& args) {
  double* sums = args.workspace.as<double>();
  int64_t count = SumBlocks<Square>(args.x.as<T>(), args.x.numel(), sums);
  double total = count == 0 ? 0 : sums[0];
  while (count > 1) {
    double* next = sums + count;
    count = SumBlocks<Plain>(sums, count, next);
    sums = next;
    total = sums[0];
  }
  double* out = args.out.as<double>();
  if (args.accumulate) {
    const double parts[2] = {*out, total};
    total = SumOfBlock<Plain>(parts, 2);
  }
  *out = total;
}

}  // namespace

void SumSquares(const SumSquaresArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { Sum<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
