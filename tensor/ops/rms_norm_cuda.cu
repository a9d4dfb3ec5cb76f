// SPDX-License-Identifier: Apache-2.0
// A row belongs to whole warps, which keep it in registers between the sum and its use: each byte moves once. The sum's
// order depends on the width, the dtype and the alignment alone; dweight's is the contract's, blocks of 64 rows.
#include "tensor/ops/cuda_kernel.cuh"
#include "tensor/ops/rms_norm.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kHeld = 4;          // packs of a row that a thread keeps; a longer row is read a second time past them
constexpr int kMaxThreads = 512;  // of a block: leaves each 128 registers, and nothing spills

// The threads of a block: x along a row, y over rows.
dim3 RowThreads(int64_t width, int pack) {
  const int64_t packs = (width + pack - 1) / pack;
  int64_t warps = (packs + 32 * kHeld - 1) / (32 * kHeld);
  if (warps < 1) warps = 1;
  if (warps > kMaxThreads / 32) warps = kMaxThreads / 32;
  const unsigned x = static_cast<unsigned>(warps * 32);
  return dim3(x, x >= 128 ? 1 : 128 / x);
}

unsigned RowBlocks(int64_t rows, const dim3& threads) {
  return static_cast<unsigned>((rows + threads.y - 1) / threads.y);
}

template <class T>
struct ForwardParams {
  const T *x, *residual, *weight;
  T *sum, *y;
  Acc<T>* rstd;
  Acc<T> eps;
  RowMap x_rows, residual_rows, sum_rows, y_rows;
  int64_t rows, width;
};

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) ForwardKernel(const __grid_constant__ ForwardParams<T> p) {
  using A = Acc<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t width = row < p.rows ? p.width : 0;  // rows past the end take part in the barrier only
  const int64_t first = threadIdx.x * N, step = static_cast<int64_t>(blockDim.x) * N;
  const T* x = p.x + p.x_rows(row);
  Pack<T, N> held[kHeld];
  A squares = 0;
  const auto add_squares = [&](const Pack<T, N>& pack) {
#pragma unroll
    for (int k = 0; k < N; ++k) squares += Load(pack.v[k]) * Load(pack.v[k]);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step < width) held[k] = LoadPack<T, N>(x + first + k * step);
  }
  if (p.residual != nullptr) {
    const T* residual = p.residual + p.residual_rows(row);
    T* sum = p.sum + p.sum_rows(row);
    const auto add_residual = [&](Pack<T, N>& pack, const Pack<T, N>& other) {
#pragma unroll
      for (int k = 0; k < N; ++k) pack.v[k] = Store<T>(Load(pack.v[k]) + Load(other.v[k]));
    };
    Pack<T, N> others[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step < width) others[k] = LoadPack<T, N>(residual + first + k * step);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * step >= width) continue;
      add_residual(held[k], others[k]);
      StorePack(sum + first + k * step, held[k]);
    }
    for (int64_t i = first + kHeld * step; i < width; i += step) {
      Pack<T, N> pack = LoadPack<T, N>(x + i);
      add_residual(pack, LoadPack<T, N>(residual + i));
      StorePack(sum + i, pack);
    }
    x = sum;  // a thread reads again what it wrote itself
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step < width) add_squares(held[k]);
  }
  for (int64_t i = first + kHeld * step; i < width; i += step) add_squares(LoadPack<T, N>(x + i));
  const A scale = A(1) / sqrt(RowSum(squares) / static_cast<A>(p.width) + p.eps);
  if (row < p.rows && threadIdx.x == 0) p.rstd[row] = scale;
  T* y = p.y + p.y_rows(row);
  const auto normalise = [&](const Pack<T, N>& pack, int64_t i) {
    const Pack<T, N> weight = LoadPack<T, N>(p.weight + i);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.v[k] = Store<T>(Load(pack.v[k]) * scale * Load(weight.v[k]));
    StorePack(y + i, out);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step < width) normalise(held[k], first + k * step);
  }
  for (int64_t i = first + kHeld * step; i < width; i += step) normalise(LoadPack<T, N>(x + i), i);
}

template <class T>
struct BackwardParams {
  const T *x, *dy, *weight, *dsum;
  const Acc<T>* rstd;
  T* dx;
  Acc<T>* partial;  // (blocks of 64 rows, width)
  RowMap x_rows, dy_rows, dsum_rows, dx_rows;
  int64_t rows, width;
};

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) InputGradKernel(const __grid_constant__ BackwardParams<T> p) {
  using A = Acc<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t width = row < p.rows ? p.width : 0;
  const int64_t first = threadIdx.x * N, step = static_cast<int64_t>(blockDim.x) * N;
  const T* x = p.x + p.x_rows(row);
  const T* dy = p.dy + p.dy_rows(row);
  const A scale = row < p.rows ? p.rstd[row] : A(0);
  Pack<T, N> x_held[kHeld], dy_held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step >= width) continue;
    x_held[k] = LoadPack<T, N>(x + first + k * step);
    dy_held[k] = LoadPack<T, N>(dy + first + k * step);
  }
  A dot = 0;
  const auto add_products = [&](const Pack<T, N>& a, const Pack<T, N>& b, int64_t i) {
    const Pack<T, N> weight = LoadPack<T, N>(p.weight + i);
#pragma unroll
    for (int k = 0; k < N; ++k) dot += Load(b.v[k]) * Load(weight.v[k]) * Load(a.v[k]);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step < width) add_products(x_held[k], dy_held[k], first + k * step);
  }
  for (int64_t i = first + kHeld * step; i < width; i += step) {
    add_products(LoadPack<T, N>(x + i), LoadPack<T, N>(dy + i), i);
  }
  const A mean = RowSum(dot) * scale * scale / static_cast<A>(p.width);
  T* dx = p.dx + p.dx_rows(row);
  const T* dsum = p.dsum == nullptr ? nullptr : p.dsum + p.dsum_rows(row);
  const auto write = [&](const Pack<T, N>& a, const Pack<T, N>& b, int64_t i) {
    const Pack<T, N> weight = LoadPack<T, N>(p.weight + i);
    Pack<T, N> more, out;
    if (dsum != nullptr) more = LoadPack<T, N>(dsum + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A value = scale * (Load(b.v[k]) * Load(weight.v[k]) - Load(a.v[k]) * mean);
      if (dsum != nullptr) value += Load(more.v[k]);
      out.v[k] = Store<T>(value);
    }
    StorePack(dx + i, out);
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * step < width) write(x_held[k], dy_held[k], first + k * step);
  }
  for (int64_t i = first + kHeld * step; i < width; i += step) {
    write(LoadPack<T, N>(x + i), LoadPack<T, N>(dy + i), i);
  }
}

constexpr int kLanes = 8;  // threads that share a block of 64 rows of one column

// partial[block, c] = sum of dy x rstd over the block's rows: a lane takes every eighth row, the lanes are added in order.
template <class T, int N>
__global__ void __launch_bounds__(32 * kLanes) WeightGradKernel(const __grid_constant__ BackwardParams<T> p) {
  using A = Acc<T>;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = begin + kNormRowBlock < p.rows ? begin + kNormRowBlock : p.rows;
  A sums[N] = {};
  if (column < p.width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kLanes) {
      const Pack<T, N> x = LoadPack<T, N>(p.x + p.x_rows(row) + column);
      const Pack<T, N> dy = LoadPack<T, N>(p.dy + p.dy_rows(row) + column);
      const A scale = p.rstd[row];
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += Load(dy.v[k]) * Load(x.v[k]) * scale;
    }
  }
  __shared__ A of_lane[kLanes][N][32];
#pragma unroll
  for (int k = 0; k < N; ++k) of_lane[threadIdx.y][k][threadIdx.x] = sums[k];
  __syncthreads();
  for (int k = threadIdx.y; k < N; k += kLanes) {
    A sum = 0;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) sum += of_lane[lane][k][threadIdx.x];
    if (column + k < p.width) p.partial[static_cast<int64_t>(blockIdx.x) * p.width + column + k] = sum;
  }
}

constexpr int kReduceLanes = 16;

// grad[c] = or += the sum over blocks of partial[., c].
template <class A>
__global__ void __launch_bounds__(32 * kReduceLanes)
    ReduceBlocksKernel(const A* partial, int64_t blocks, int64_t width, void* grad, DType dtype, bool accumulate) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  A sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t block = threadIdx.y; block < blocks; block += kReduceLanes) sum += partial[block * width + column];
  }
  __shared__ A of_lane[kReduceLanes][32];
  of_lane[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int lane = 1; lane < kReduceLanes; ++lane) sum += of_lane[lane][threadIdx.x];
  if (accumulate) {
    // In the wider of the two types.
    if (dtype == DType::kF64) return StoreAny(grad, dtype, column, LoadAny<double>(grad, dtype, column) + sum);
    sum += LoadAny<A>(grad, dtype, column);
  }
  StoreAny(grad, dtype, column, sum);
}

unsigned Blocks(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

template <class T, int N>
void Forward(const RmsNormForwardArgs& args) {
  const bool adds = args.residual.present();
  const ForwardParams<T> params{
      .x = static_cast<const T*>(FirstElement(args.x)),
      .residual = adds ? static_cast<const T*>(FirstElement(args.residual)) : nullptr,
      .weight = static_cast<const T*>(FirstElement(args.weight)),
      .sum = adds ? static_cast<T*>(FirstElement(args.sum)) : nullptr,
      .y = static_cast<T*>(FirstElement(args.y)),
      .rstd = static_cast<Acc<T>*>(FirstElement(args.rstd)),
      .eps = static_cast<Acc<T>>(args.eps),
      .x_rows = RowMap(args.x.layout),
      .residual_rows = adds ? RowMap(args.residual.layout) : RowMap(),
      .sum_rows = adds ? RowMap(args.sum.layout) : RowMap(),
      .y_rows = RowMap(args.y.layout),
      .rows = RowCount(args.x.shape()),
      .width = args.x.shape().back(),
  };
  const dim3 threads = RowThreads(params.width, N);
  const internal::LaunchScope scope(args.x.device);
  ForwardKernel<T, N><<<RowBlocks(params.rows, threads), threads, 0, scope.stream()>>>(params);
  scope.CheckLaunch("rms_norm");
}

template <class T, int N>
void Backward(const RmsNormBackwardArgs& args) {
  const bool adds = args.dsum.present();
  const BackwardParams<T> params{
      .x = static_cast<const T*>(FirstElement(args.x)),
      .dy = static_cast<const T*>(FirstElement(args.dy)),
      .weight = static_cast<const T*>(FirstElement(args.weight)),
      .dsum = adds ? static_cast<const T*>(FirstElement(args.dsum)) : nullptr,
      .rstd = static_cast<const Acc<T>*>(FirstElement(args.rstd)),
      .dx = static_cast<T*>(FirstElement(args.dx)),
      .partial = static_cast<Acc<T>*>(FirstElement(args.workspace)),
      .x_rows = RowMap(args.x.layout),
      .dy_rows = RowMap(args.dy.layout),
      .dsum_rows = adds ? RowMap(args.dsum.layout) : RowMap(),
      .dx_rows = args.dx.present() ? RowMap(args.dx.layout) : RowMap(),
      .rows = RowCount(args.x.shape()),
      .width = args.x.shape().back(),
  };
  const internal::LaunchScope scope(args.x.device);
  if (args.dweight.present()) {  // first: dx may be dy
    const unsigned blocks = Blocks(params.rows, kNormRowBlock);
    if (blocks > 0) {
      const dim3 grid(blocks, Blocks(params.width, 32 * N));
      WeightGradKernel<T, N><<<grid, dim3(32, kLanes), 0, scope.stream()>>>(params);
      scope.CheckLaunch("rms_norm");
    }
    ReduceBlocksKernel<<<Blocks(params.width, 32), dim3(32, kReduceLanes), 0, scope.stream()>>>(
        params.partial, blocks, params.width, FirstElement(args.dweight), args.dweight.dtype, args.accumulate_dweight);
    scope.CheckLaunch("rms_norm");
  }
  if (args.dx.present() && params.rows > 0) {
    const dim3 threads = RowThreads(params.width, N);
    InputGradKernel<T, N><<<RowBlocks(params.rows, threads), threads, 0, scope.stream()>>>(params);
    scope.CheckLaunch("rms_norm");
  }
}

}  // namespace

void RmsNormForward(const RmsNormForwardArgs& args) {
  if (RowCount(args.x.shape()) == 0) return;
  bool packs = true;
  for (const ConstView& view : {args.x, args.weight, args.residual, ConstView(args.y), ConstView(args.sum)}) {
    packs = packs && RowsArePacks(view);
  }
  DispatchFloating(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    packs ? Forward<T, kPackSize<T>>(args) : Forward<T, 1>(args);
  });
}

void RmsNormBackward(const RmsNormBackwardArgs& args) {
  if (args.x.shape().back() == 0) return;
  bool packs = true;
  for (const ConstView& view : {args.x, args.dy, args.weight, args.dsum, ConstView(args.dx)}) {
    packs = packs && RowsArePacks(view);
  }
  DispatchFloating(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    packs ? Backward<T, kPackSize<T>>(args) : Backward<T, 1>(args);
  });
}

}  // namespace tessera::ops::cuda
