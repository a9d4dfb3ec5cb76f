// SPDX-License-Identifier: Apache-2.0
// What the optimizers' CPU kernels share: the fused multiply-add, and the walk over a flat range.
// Only `*_cpu.cc` files include it. Everything is local to the including file (see tensor/cpu_isa.h for why).
//
// Kernels are compiled with contraction on, which differs between instruction sets. Here nothing is left to contract:
// no operand of a plain + or - is a product.
#pragma once

#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/flat_step.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// a * b + c, rounded once.
TESSERA_ALWAYS_INLINE double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
TESSERA_ALWAYS_INLINE float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// Without the instruction, the same bits through f64, and vectorised: the product is exact there, the sum is rounded to
// odd (an inexact result gets its last bit set), and then rounding to f32 is right, for 53 >= 2 * 24 + 2.
// S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE TC 57(4), 2008.
TESSERA_ALWAYS_INLINE float Fma(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double shifted = sum - product;
  const double error = (product - (sum - shifted)) + (addend - shifted);  // exact (Knuth); NaN when sum is not finite
  const uint64_t bits = std::bit_cast<uint64_t>(sum), error_bits = std::bit_cast<uint64_t>(error);
  const uint64_t even = ~bits & 1;
  const uint64_t step = std::bit_cast<double>(error_bits & 0x7FFFFFFFFFFFFFFFu) > 0 ? even : 0;
  const uint64_t opposite = (bits ^ error_bits) >> 63;  // then the exact value is one step down in magnitude, else up
  return static_cast<float>(std::bit_cast<double>(bits + step - ((step & opposite) << 1)));
}
#endif

inline constexpr int64_t kStepGrain = 16384;  // elements of a parallel chunk
inline constexpr int64_t kStepTile = 1024;    // elements whose converted gradient waits in the first-level cache

template <class G, class A>
void ConvertTile(int64_t n, const G* __restrict from, A* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(Load(from[i]));
}

template <class L, class A>
void RoundTile(int64_t n, const A* __restrict from, L* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = Store<L>(from[i]);
}

// Calls update(begin, n, gradient) on tiles of the range, in parallel, with the gradient in A; then low_precision.
template <class A, class Update>
TESSERA_ALWAYS_INLINE void ForEachTile(const View& master, const ConstView& gradient, const View& low_precision,
                                       Update&& update) {
  ParallelFor(master.numel(), kStepGrain, [&](int64_t begin, int64_t end) {
    alignas(64) A converted[kStepTile];
    while (begin < end) {
      const int64_t n = end - begin < kStepTile ? end - begin : kStepTile;
      if (gradient.dtype == DTypeOf<A>()) {
        update(begin, n, gradient.as<A>() + begin);
      } else {
        DispatchFloating(gradient.dtype, [&](auto tag) {
          ConvertTile(n, gradient.as<typename decltype(tag)::type>() + begin, converted);
        });
        update(begin, n, static_cast<const A*>(converted));
      }
      if (low_precision.present()) {
        const A* weights = master.as<A>() + begin;
        if (low_precision.dtype == DType::kBF16) {
          RoundTile(n, weights, low_precision.as<BFloat16>() + begin);
        } else {
          RoundTile(n, weights, low_precision.as<Float16>() + begin);
        }
      }
      begin += n;
    }
  });
}

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
