// SPDX-License-Identifier: Apache-2.0
// What gemm_cuda.cu and gemm_lt_cuda.cc share. Free of CUDA's headers.
#pragma once

#include <cstdint>

#include "tensor/ops/gemm.h"

namespace tessera::ops::cuda {

// The leading dims of a product, joined where all operands allow it; a stride of 0 repeats a matrix.
struct GemmBatch {
  enum Operand { kA, kB, kC, kPreActivation, kOperandCount };
  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kOperandCount][kMaxRank] = {};
};
GemmBatch JoinBatch(const GemmArgs& args);

// The product through cuBLASLt, with its epilogue. False, and nothing done, where cuBLASLt does not take these layouts,
// dtypes or this epilogue as the contract of gemm.h has them. M, N and K are above 0.
bool GemmLt(const GemmArgs& args);

}  // namespace tessera::ops::cuda
