// SPDX-License-Identifier: Apache-2.0
// What CUDA kernels share: dtypes, 16-byte packs, row and element addresses, sums in a fixed order. Only `*_cuda.cu` files
// include it. Everything is local to the including file.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tensor/cuda/runtime.cuh"
#include "tensor/tensor.h"

namespace tessera::ops::cuda {
namespace {

template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
// The type that values of T are computed in.
template <class T>
using Acc = typename AccumulatorOf<T>::type;

template <class T>
__device__ __forceinline__ T Load(T x) {
  return x;
}
__device__ __forceinline__ float Load(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float Load(__half x) { return __half2float(x); }

template <class T>
struct TypeTag {
  using type = T;
};

// Rounds to nearest even; f64 goes to 16 bits by way of f32.
template <class T, class A>
__device__ __forceinline__ T Convert(A x, TypeTag<T>) {
  return static_cast<T>(x);
}
template <class A>
__device__ __forceinline__ __nv_bfloat16 Convert(A x, TypeTag<__nv_bfloat16>) {
  return __float2bfloat16_rn(static_cast<float>(x));
}
template <class A>
__device__ __forceinline__ __half Convert(A x, TypeTag<__half>) {
  return __float2half_rn(static_cast<float>(x));
}
template <class T, class A>
__device__ __forceinline__ T Store(A x) {
  return Convert(x, TypeTag<T>{});
}

// Calls f(TypeTag<T>) on the host for the floating dtype. The checks in the op's .cc have refused the others.
template <class F>
void DispatchFloating(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kBF16:
      return f(TypeTag<__nv_bfloat16>{});
    case DType::kF16:
      return f(TypeTag<__half>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    default:
      return;
  }
}

// Where the dtype is known at run time only: for what is read or written once per row or column.
template <class A>
__device__ __forceinline__ A LoadAny(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<A>(static_cast<const float*>(data)[i]);
    case DType::kBF16:
      return static_cast<A>(Load(static_cast<const __nv_bfloat16*>(data)[i]));
    case DType::kF16:
      return static_cast<A>(Load(static_cast<const __half*>(data)[i]));
    default:
      return static_cast<A>(static_cast<const double*>(data)[i]);
  }
}
template <class A>
__device__ __forceinline__ void StoreAny(void* data, DType dtype, int64_t i, A value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = Store<float>(value);
      return;
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(data)[i] = Store<__nv_bfloat16>(value);
      return;
    case DType::kF16:
      static_cast<__half*>(data)[i] = Store<__half>(value);
      return;
    default:
      static_cast<double*>(data)[i] = Store<double>(value);
  }
}

// N elements that one thread moves in one access.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T v[N];
};
template <class T>
inline constexpr int kPackSize = 16 / sizeof(T);

template <class T, int N>
__device__ __forceinline__ Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ void StorePack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Each row starts at a 16-byte border and is whole packs. An argument that is absent is no hindrance.
inline bool RowsArePacks(const ConstView& view) {
  if (!view.present()) return true;
  const int64_t item = ItemSize(view.dtype), pack = 16 / item;
  const int last = view.rank() - 1;
  if ((reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(view.layout.offset() * item)) % 16 != 0)
    return false;
  if (view.size(last) % pack != 0) return false;
  for (int dim = 0; dim < last; ++dim) {
    if (view.size(dim) > 1 && view.stride(dim) % pack != 0) return false;
  }
  return true;
}

inline const void* FirstElement(const ConstView& view) {
  if (view.data == nullptr) return nullptr;
  return static_cast<const char*>(view.data) + view.layout.offset() * ItemSize(view.dtype);
}
inline void* FirstElement(const View& view) { return const_cast<void*>(FirstElement(ConstView(view))); }

// Element offset of row `row`, row-major over all dims but the last; dims that can be joined are.
struct RowMap {
  int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
  int outer = 0;

  RowMap() = default;
  explicit RowMap(const Layout& layout) {
    for (int dim = 0; dim + 1 < layout.rank(); ++dim) {
      if (layout.size(dim) == 1) continue;
      if (outer > 0 && strides[outer - 1] == layout.stride(dim) * layout.size(dim)) {
        sizes[outer - 1] *= layout.size(dim);
      } else {
        sizes[outer++] = layout.size(dim);
      }
      strides[outer - 1] = layout.stride(dim);
    }
  }
  __device__ __forceinline__ int64_t operator()(int64_t row) const {
    if (outer <= 1) return row * strides[0];
    int64_t offset = 0;
#pragma unroll
    for (int dim = kMaxRank - 1; dim >= 0; --dim) {
      if (dim >= outer) continue;
      if (dim == 0) {
        offset += row * strides[0];
      } else {
        offset += row % sizes[dim] * strides[dim];
        row /= sizes[dim];
      }
    }
    return offset;
  }
};

// Element offsets in N operands of one shape with any strides; dims that every operand can join are joined.
template <int N>
struct ElementMap {
  int64_t sizes[kMaxRank] = {};
  int64_t strides[N][kMaxRank] = {};
  int64_t numel = 0;
  int rank = 0;

  explicit ElementMap(const Layout* const (&layouts)[N]) : numel(layouts[0]->numel()) {
    const Layout& first = *layouts[0];
    for (int dim = 0; dim < first.rank(); ++dim) {
      if (first.size(dim) == 1) continue;
      bool joins = rank > 0;
      for (int operand = 0; operand < N && joins; ++operand) {
        joins = strides[operand][rank - 1] == layouts[operand]->stride(dim) * first.size(dim);
      }
      if (joins) {
        sizes[rank - 1] *= first.size(dim);
      } else {
        sizes[rank++] = first.size(dim);
      }
      for (int operand = 0; operand < N; ++operand) strides[operand][rank - 1] = layouts[operand]->stride(dim);
    }
    if (rank == 0) {
      sizes[rank++] = numel;
      for (int operand = 0; operand < N; ++operand) strides[operand][0] = 1;
    }
  }
  bool IsDense() const {
    for (int operand = 0; operand < N; ++operand) {
      if (rank != 1 || strides[operand][0] != 1) return false;
    }
    return true;
  }
  __device__ __forceinline__ void Offsets(int64_t i, int64_t (&offsets)[N]) const {
#pragma unroll
    for (int operand = 0; operand < N; ++operand) offsets[operand] = 0;
#pragma unroll
    for (int dim = kMaxRank - 1; dim >= 0; --dim) {
      if (dim >= rank) continue;
      const int64_t index = dim == 0 ? i : i % sizes[dim];
      if (dim > 0) i /= sizes[dim];
#pragma unroll
      for (int operand = 0; operand < N; ++operand) offsets[operand] += index * strides[operand][dim];
    }
  }
};

// How many blocks of `threads` a loop over n elements starts; the loop strides over the rest.
inline unsigned GridFor(int64_t n, int threads) {
  constexpr int64_t kMost = 132 * 16;
  const int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

__device__ __forceinline__ int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t GridThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// The sum over a row's threads: blockDim.x of them, whole warps. The order is fixed by blockDim.x. Once per kernel, by all
// threads of the block.
template <class A>
__device__ __forceinline__ A RowSum(A value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  __shared__ A of_warp[32];
  A* const of_row = of_warp + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) of_row[threadIdx.x / 32] = value;
  __syncthreads();
  A sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum += of_row[warp];
  return sum;
}

}  // namespace
}  // namespace tessera::ops::cuda
