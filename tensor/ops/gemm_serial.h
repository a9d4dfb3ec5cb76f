// SPDX-License-Identifier: Apache-2.0
// One matrix product on the calling thread, for other kernel files of the same instruction set: attention calls it
// inside its own parallel loops. Only `*_cpu.cc` files include this.
//
//   GemmSerial({.m = t, .n = t, .k = d, .a = Operand(q, d, 1), .b = Operand(key, 1, d), .c = Target(scores, t, 1)});
//
// The contract is that of tensor/ops/gemm.h for one matrix: any strides, any floating dtypes; c may not overlap.
#pragma once

#include <cstdint>

#include "tensor/cpu_isa.h"
#include "tensor/dtype.h"

namespace tessera::ops::cpu::TESSERA_ISA {

struct GemmOperand {
  const void* data = nullptr;  // the first element
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;  // in elements
};

struct GemmTarget {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};

// What happens to finished elements: s = product + bias[column], pre_activation = s, c = gelu ? GELU(s) : s.
struct GemmEpilogue {
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
  int64_t bias_stride = 0;
  GemmTarget pre_activation;
  bool gelu = false;
};

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  GemmOperand a, b;  // (m, k), (k, n)
  GemmTarget c;      // (m, n)
  double alpha = 1;
  bool accumulate = false;
  GemmEpilogue epilogue;
};

void GemmSerial(const GemmProblem& problem);

namespace {

template <class T>
TESSERA_ALWAYS_INLINE GemmOperand Operand(const T* data, int64_t row_stride, int64_t col_stride) {
  return {data, DTypeOf<T>(), row_stride, col_stride};
}
template <class T>
TESSERA_ALWAYS_INLINE GemmTarget Target(T* data, int64_t row_stride, int64_t col_stride) {
  return {data, DTypeOf<T>(), row_stride, col_stride};
}

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
