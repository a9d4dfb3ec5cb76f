// SPDX-License-Identifier: Apache-2.0
// What rms_norm_cpu.cc and layer_norm_cpu.cc share. Only `*_cpu.cc` files include this.
#pragma once

#include "tensor/ops/cpu_kernel.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// sum = x + residual for one row; returns the row to normalise. Without a residual that is x.
template <class T>
TESSERA_ALWAYS_INLINE const T* AddResidual(const T* x, const T* residual, T* sum, int64_t width) {
  if (residual == nullptr) return x;
#pragma GCC ivdep
  for (int64_t i = 0; i < width; ++i) sum[i] = Store<T>(Load(x[i]) + Load(residual[i]));
  return sum;
}

// grad (width) = or += the sum of `blocks` partial rows that lie `stride` apart; the first partial row is used up.
template <class A>
TESSERA_ALWAYS_INLINE void ReduceBlocks(A* partial, int64_t blocks, int64_t stride, const View& grad, bool accumulate) {
  const int64_t width = grad.numel();
  for (int64_t block = 1; block < blocks; ++block) {
    for (int64_t i = 0; i < width; ++i) partial[i] += partial[block * stride + i];
  }
  DispatchFloating(grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    G* out = grad.as<G>();
    for (int64_t i = 0; i < width; ++i) {
      const A sum = blocks > 0 ? partial[i] : A(0);
      out[i] = Store<G>(accumulate ? Load(out[i]) + sum : sum);
    }
  });
}

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
