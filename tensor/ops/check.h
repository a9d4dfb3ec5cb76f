// SPDX-License-Identifier: Apache-2.0
// The checks that ops share. Each throws one line: the op, the argument, what came, what is legal.
#pragma once

#include <initializer_list>

#include "tensor/tensor.h"

namespace tessera::ops {

// An argument with its name in the op's struct.
struct Named {
  const char* name;
  const ConstView& view;
};

void CheckShape(const char* op, const Named& arg, const Shape& expected);
void CheckSameShape(const char* op, const Named& a, const Named& b);
void CheckRank(const char* op, const Named& arg, int rank);
void CheckDType(const char* op, const Named& arg, DType expected);
void CheckSameDType(const char* op, std::initializer_list<Named> args);
void CheckSameDevice(const char* op, std::initializer_list<Named> args);
void CheckFloating(const char* op, const Named& arg);
void CheckIndexType(const char* op, const Named& arg);  // i32 or i64
// Every element of a CPU index tensor is in [0, below); the error names the first other one and its place.
void CheckIndexRange(const char* op, const Named& arg, int64_t below);
void CheckContiguous(const char* op, const Named& arg);
void CheckDenseRows(const char* op, const Named& arg);  // last dimension has stride 1
// An output may not name one element twice (an expanded tensor).
void CheckNoOverlap(const char* op, const Named& out);

// Where an op's work is done: in `cpu::`, in `cuda::`, or, on meta, nowhere. Throws for CUDA in a build without it.
enum class Backend { kCpu, kCuda, kNone };
Backend BackendFor(const char* op, const ConstView& view);
// What an op without a CUDA kernel does there.
[[noreturn]] void NoCudaKernel(const char* op);

}  // namespace tessera::ops
