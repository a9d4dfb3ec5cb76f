// SPDX-License-Identifier: Apache-2.0
// The column sums of linear's backward; its products are Gemm's.
#include "tensor/ops/cuda_kernel.cuh"
#include "tensor/ops/linear.h"

namespace tessera::ops::cuda {
namespace {

constexpr int64_t kRowBlock = 64;  // rows added up in the accumulation type before they join a total in f64
constexpr int kLanes = 32;         // totals per column: lane l has the blocks l, l + 32, ...

template <class T>
__global__ void __launch_bounds__(32 * kLanes)
    ColumnSumKernel(const T* dy, int64_t row_stride, int64_t rows, int64_t cols, void* dbias, DType dtype, int64_t step,
                    bool accumulate) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  double total = 0;
  if (col < cols) {
    for (int64_t first = threadIdx.y * kRowBlock; first < rows; first += kLanes * kRowBlock) {
      const int64_t end = first + kRowBlock < rows ? first + kRowBlock : rows;
      Acc<T> block = 0;
#pragma unroll 8
      for (int64_t row = first; row < end; ++row) block += Load(dy[row * row_stride + col]);
      total += block;
    }
  }
  __shared__ double of_lane[kLanes][32];
  of_lane[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || col >= cols) return;
  for (int lane = 1; lane < kLanes; ++lane) total += of_lane[lane][threadIdx.x];
  if (accumulate) total += LoadAny<double>(dbias, dtype, col * step);
  StoreAny(dbias, dtype, col * step, total);
}

template <class T>
void Launch(const ColumnSumArgs& args) {
  const int64_t rows = args.dy.size(0), cols = args.dy.size(1);
  const internal::LaunchScope scope(args.dy.device);
  ColumnSumKernel<<<static_cast<unsigned>((cols + 31) / 32), dim3(32, kLanes), 0, scope.stream()>>>(
      static_cast<const T*>(FirstElement(args.dy)), args.dy.stride(0), rows, cols, FirstElement(args.dbias),
      args.dbias.dtype, args.dbias.stride(0), args.accumulate);
  scope.CheckLaunch("linear");
}

}  // namespace

void ColumnSum(const ColumnSumArgs& args) {
  if (args.dy.size(1) == 0) return;
  DispatchFloating(args.dy.dtype, [&](auto tag) { Launch<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cuda
