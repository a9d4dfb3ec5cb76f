// SPDX-License-Identifier: Apache-2.0
// The matrix product that everything uses: C = alpha * A B, or C += alpha * A B with `accumulate`; then an optional
// epilogue.
//
// a (..., M, K), b (..., K, N), c (..., M, N): any strides, so a transpose, a slice or an expanded (stride 0) tensor is
// a view of the same call. The leading dims of a and b broadcast by NumPy's rule, and c has exactly the broadcast
// shape. c names no element twice and shares no memory with a or b. Any floating dtypes: sums run in f32 over the whole
// of K, in f64 if any of the three is f64, and are rounded to c's dtype once. Empty M, N and K are legal (K = 0: an
// empty sum).
//
// Epilogue, while the block is in cache:  s = alpha * A B (+ C) + bias[n],  pre_activation = s,  c = gelu ? GELU(s) :
// s, with the tanh form of GELU, from the unrounded s. bias (N) has any stride; pre_activation has c's shape and no
// overlap.
//
// Determinism: C is made tile by tile and K is cut into pieces of at most 256, both by the shape alone. A piece is
// summed in ascending k, and the pieces are added in order. So the bits do not depend on the number of threads; with
// AVX2 or AVX-512 each element is the same chain of operations in any tile, and its bits do not depend on M and N
// either. Another instruction set may round differently.
//
// On CUDA: cuBLASLt, with the algorithm that its heuristic names first for a shape, or a plain kernel for what it does not
// take (mixed input dtypes, no dense dimension, ...). f32 is true f32, never TF32. The same bits on each run; the workspace
// is one of 32 MiB per stream.
//
// Fast cases on the CPU: c of the accumulation type with dense rows or columns. Everything else of a, b and c is
// converted while tiles are packed. Packing buffers belong to the threads that work (tensor/scratch.h): at most 2 MiB
// each.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct GemmArgs {
  ConstView a, b;
  View c;
  double alpha = 1;
  bool accumulate = false;
  ConstView bias = {};       // optional
  View pre_activation = {};  // optional
  bool gelu = false;
};

// Errors name "matmul", which is what users call it.
void Gemm(const GemmArgs& args);

TESSERA_CPU_KERNEL(Gemm, GemmArgs)
TESSERA_CUDA_KERNEL(Gemm, GemmArgs)

}  // namespace tessera::ops
