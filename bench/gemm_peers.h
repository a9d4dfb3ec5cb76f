// SPDX-License-Identifier: Apache-2.0
// What gemm_bench compares with. Row-major f32 throughout: C (m, n) = op(A) op(B), dense.
#pragma once

#include <cstdint>

namespace tessera::bench {

struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  const float *a, *b;
  float* c;
};

// Both are compiled for the machine that builds the benchmark.
void EigenProduct(const Product& product, int threads);  // over OpenMP
// f32 multiply-adds on registers alone, on this many threads at once: FLOP/s.
double MeasuredPeak(int threads);

}  // namespace tessera::bench
