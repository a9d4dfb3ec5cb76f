// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/check.h"

namespace tessera::ops {

void CheckShape(const char* op, const Named& arg, const Shape& expected) {
  if (arg.view.shape() == expected) return;
  throw Error(Str(op, ": ", arg.name, " has shape ", arg.view.shape(), ", expected ", expected));
}

void CheckSameShape(const char* op, const Named& a, const Named& b) {
  if (a.view.shape() == b.view.shape()) return;
  throw Error(Str(op, ": ", a.name, " has shape ", a.view.shape(), ", ", b.name, " has ", b.view.shape(),
                  "; they must be equal"));
}

void CheckRank(const char* op, const Named& arg, int rank) {
  if (arg.view.rank() == rank) return;
  throw Error(Str(op, ": ", arg.name, " must have rank ", rank, ", got shape ", arg.view.shape()));
}

void CheckDType(const char* op, const Named& arg, DType expected) {
  if (arg.view.dtype == expected) return;
  throw Error(Str(op, ": ", arg.name, " is ", Name(arg.view.dtype), ", expected ", Name(expected)));
}

void CheckSameDType(const char* op, std::initializer_list<Named> args) {
  const Named& first = *args.begin();
  for (const Named& arg : args) {
    if (arg.view.dtype == first.view.dtype) continue;
    throw Error(Str(op, ": ", first.name, " is ", Name(first.view.dtype), ", ", arg.name, " is ", Name(arg.view.dtype),
                    "; they must be equal"));
  }
}

void CheckSameDevice(const char* op, std::initializer_list<Named> args) {
  const Named& first = *args.begin();
  for (const Named& arg : args) {
    if (arg.view.device == first.view.device) continue;
    throw Error(Str(op, ": ", first.name, " is on ", first.view.device, ", ", arg.name, " is on ", arg.view.device,
                    "; they must be equal"));
  }
}

void CheckFloating(const char* op, const Named& arg) {
  if (IsFloating(arg.view.dtype)) return;
  throw Error(Str(op, ": ", arg.name, " is ", Name(arg.view.dtype), ", expected f32, bf16, f16 or f64"));
}

void CheckIndexType(const char* op, const Named& arg) {
  if (arg.view.dtype == DType::kI32 || arg.view.dtype == DType::kI64) return;
  throw Error(Str(op, ": ", arg.name, " is ", Name(arg.view.dtype), ", expected i32 or i64"));
}

void CheckIndexRange(const char* op, const Named& arg, int64_t below) {
  const Layout& layout = arg.view.layout;
  const int64_t numel = layout.numel();
  Shape index = layout.shape();
  for (int dim = 0; dim < index.rank(); ++dim) index[dim] = 0;
  for (int64_t i = 0; i < numel; ++i) {
    int64_t offset = layout.offset();
    for (int dim = 0; dim < index.rank(); ++dim) offset += index[dim] * layout.stride(dim);
    const int64_t id = arg.view.dtype == DType::kI32 ? static_cast<const int32_t*>(arg.view.data)[offset]
                                                     : static_cast<const int64_t*>(arg.view.data)[offset];
    if (id < 0 || id >= below) {
      throw Error(Str(op, ": ", arg.name, " at ", index, " is ", id, ", legal is ",
                      below > 0 ? Str("0..", below - 1) : std::string("nothing: there are no rows")));
    }
    for (int dim = index.rank() - 1; dim >= 0; --dim) {
      if (++index[dim] < layout.size(dim)) break;
      index[dim] = 0;
    }
  }
}

void CheckContiguous(const char* op, const Named& arg) {
  if (arg.view.layout.IsContiguous()) return;
  throw Error(Str(op, ": ", arg.name, " must be contiguous, got ", arg.view.layout, "; use Contiguous()"));
}

void CheckDenseRows(const char* op, const Named& arg) {
  if (arg.view.layout.HasDenseRows()) return;
  throw Error(
      Str(op, ": ", arg.name, " must have a dense last dimension, got ", arg.view.layout, "; use Contiguous()"));
}

void CheckNoOverlap(const char* op, const Named& out) {
  if (!out.view.layout.HasOverlap()) return;
  throw Error(Str(op, ": ", out.name, " names one element under several indexes (", out.view.layout,
                  "); write to a dense tensor"));
}

Backend BackendFor(const char* op, const ConstView& view) {
  if (view.device.is_cpu()) return Backend::kCpu;
  if (view.device.is_meta()) return Backend::kNone;
  if constexpr (kBuiltWithCuda) return Backend::kCuda;
  throw Error(Str(op, ": this build has no CUDA kernels (configure with -Dcuda=enabled)"));
}

void NoCudaKernel(const char* op) { throw Error(Str(op, ": has no CUDA kernel yet; run it on the CPU")); }

}  // namespace tessera::ops
