// SPDX-License-Identifier: Apache-2.0
// The product: through cuBLASLt wherever it takes the case, else by a plain kernel that takes every layout and dtype.
#include "tensor/ops/cuda_kernel.cuh"
#include "tensor/ops/gemm_cuda.h"

namespace tessera::ops::cuda {

GemmBatch JoinBatch(const GemmArgs& args) {
  const Layout* const layouts[] = {&args.a.layout, &args.b.layout, &args.c.layout, &args.pre_activation.layout};
  GemmBatch batch;
  const int dims = args.c.rank() - 2;
  for (int dim = 0; dim < dims; ++dim) {
    const int64_t size = args.c.size(dim);
    if (size == 1) continue;
    int64_t strides[GemmBatch::kOperandCount];
    bool joins = batch.rank > 0;
    for (int operand = 0; operand < GemmBatch::kOperandCount; ++operand) {
      const Layout& layout = *layouts[operand];
      const int own = dim - (args.c.rank() - layout.rank());  // by NumPy's rule, from the right
      strides[operand] = own < 0 || layout.size(own) == 1 ? 0 : layout.stride(own);
      if (joins) joins = batch.strides[operand][batch.rank - 1] == strides[operand] * size;
    }
    if (joins) {
      batch.sizes[batch.rank - 1] *= size;
    } else {
      batch.sizes[batch.rank++] = size;
    }
    for (int operand = 0; operand < GemmBatch::kOperandCount; ++operand) {
      batch.strides[operand][batch.rank - 1] = strides[operand];
    }
  }
  return batch;
}

namespace {

constexpr int kTile = 16;

struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};

Matrix AsMatrix(const ConstView& view) {
  if (!view.present()) return {};
  return {FirstElement(view), view.dtype, view.stride(view.rank() - 2), view.stride(view.rank() - 1)};
}

struct PlainParams {
  Matrix a, b, c, pre_activation;
  const void* bias;  // may be null
  DType bias_dtype;
  int64_t bias_step;
  int64_t m, n, k, row_tiles, col_tiles, tiles;
  GemmBatch batch;
  double alpha;
  bool accumulate, gelu;
};

// x * sigmoid(2 u), the tanh form without its cancellation; the infinities give the limits.
template <class A>
__device__ __forceinline__ A GeluTanh(A x) {
  constexpr A kTwice = A(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
  const A e = exp(-kTwice * (x + A(0.044715) * x * x * x));
  return isinf(e) ? A(0) : x / (A(1) + e);
}

// Writes pre_activation and c of one element, whose product and sum with the old c are in `s`.
template <class A>
__device__ __forceinline__ void Epilogue(const PlainParams& p, A s, int64_t row, int64_t col, int64_t c_start,
                                         int64_t pre_start) {
  if (p.bias != nullptr) s += LoadAny<A>(p.bias, p.bias_dtype, col * p.bias_step);
  if (p.pre_activation.data != nullptr) {
    StoreAny(const_cast<void*>(p.pre_activation.data), p.pre_activation.dtype,
             pre_start + row * p.pre_activation.row_stride + col * p.pre_activation.col_stride, s);
  }
  StoreAny(const_cast<void*>(p.c.data), p.c.dtype, c_start + row * p.c.row_stride + col * p.c.col_stride,
           p.gelu ? GeluTanh(s) : s);
}

__device__ __forceinline__ void BatchStarts(const GemmBatch& batch, int64_t index,
                                            int64_t (&starts)[GemmBatch::kOperandCount]) {
  for (int operand = 0; operand < GemmBatch::kOperandCount; ++operand) starts[operand] = 0;
  for (int dim = batch.rank - 1; dim >= 0; --dim) {
    const int64_t i = index % batch.sizes[dim];
    index /= batch.sizes[dim];
    for (int operand = 0; operand < GemmBatch::kOperandCount; ++operand) {
      starts[operand] += i * batch.strides[operand][dim];
    }
  }
}

// One thread per element of a 16 x 16 tile; k in ascending order, in one chain.
template <class A>
__global__ void __launch_bounds__(kTile* kTile) PlainGemm(const __grid_constant__ PlainParams p) {
  __shared__ A a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    int64_t starts[GemmBatch::kOperandCount];
    BatchStarts(p.batch, tile / (p.row_tiles * p.col_tiles), starts);
    const int64_t in_matrix = tile % (p.row_tiles * p.col_tiles);
    const int64_t row = in_matrix / p.col_tiles * kTile + threadIdx.y;
    const int64_t col = in_matrix % p.col_tiles * kTile + threadIdx.x;
    A sum = 0;
    for (int64_t k = 0; k < p.k; k += kTile) {
      const int64_t a_col = k + threadIdx.x, b_row = k + threadIdx.y;
      a_tile[threadIdx.y][threadIdx.x] =
          row < p.m && a_col < p.k
              ? LoadAny<A>(p.a.data, p.a.dtype, starts[GemmBatch::kA] + row * p.a.row_stride + a_col * p.a.col_stride)
              : A(0);
      b_tile[threadIdx.y][threadIdx.x] =
          b_row < p.k && col < p.n
              ? LoadAny<A>(p.b.data, p.b.dtype, starts[GemmBatch::kB] + b_row * p.b.row_stride + col * p.b.col_stride)
              : A(0);
      __syncthreads();
      const int depth = p.k - k < kTile ? static_cast<int>(p.k - k) : kTile;
      for (int i = 0; i < depth; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
      __syncthreads();
    }
    if (row >= p.m || col >= p.n) continue;
    A s = static_cast<A>(p.alpha) * sum;
    if (p.accumulate) {
      s += LoadAny<A>(p.c.data, p.c.dtype, starts[GemmBatch::kC] + row * p.c.row_stride + col * p.c.col_stride);
    }
    Epilogue(p, s, row, col, starts[GemmBatch::kC], starts[GemmBatch::kPreActivation]);
  }
}

// The epilogue alone, for c that holds the product in the accumulation type, where nothing has been rounded.
template <class A>
__global__ void EpilogueKernel(const __grid_constant__ PlainParams p, int64_t numel) {
  for (int64_t i = GlobalThread(); i < numel; i += GridThreads()) {
    const int64_t col = i % p.n, row = i / p.n % p.m;
    int64_t starts[GemmBatch::kOperandCount];
    BatchStarts(p.batch, p.batch.rank == 0 ? 0 : i / p.n / p.m, starts);
    const A s = LoadAny<A>(p.c.data, p.c.dtype, starts[GemmBatch::kC] + row * p.c.row_stride + col * p.c.col_stride);
    Epilogue(p, s, row, col, starts[GemmBatch::kC], starts[GemmBatch::kPreActivation]);
  }
}

PlainParams ParamsOf(const GemmArgs& args) {
  const int rank = args.c.rank();
  PlainParams p{.a = AsMatrix(args.a),
                .b = AsMatrix(args.b),
                .c = AsMatrix(args.c),
                .pre_activation = AsMatrix(args.pre_activation),
                .bias = args.bias.present() ? FirstElement(args.bias) : nullptr,
                .bias_dtype = args.bias.dtype,
                .bias_step = args.bias.present() ? args.bias.stride(0) : 0,
                .m = args.c.size(rank - 2),
                .n = args.c.size(rank - 1),
                .k = args.a.size(args.a.rank() - 1),
                .batch = JoinBatch(args),
                .alpha = args.alpha,
                .accumulate = args.accumulate,
                .gelu = args.gelu};
  p.row_tiles = (p.m + kTile - 1) / kTile;
  p.col_tiles = (p.n + kTile - 1) / kTile;
  p.tiles = p.row_tiles * p.col_tiles;
  for (int dim = 0; dim < p.batch.rank; ++dim) p.tiles *= p.batch.sizes[dim];
  return p;
}

void LaunchPlain(const GemmArgs& args, bool wide) {
  const PlainParams p = ParamsOf(args);
  const internal::LaunchScope scope(args.c.device);
  const unsigned blocks = static_cast<unsigned>(p.tiles < INT32_MAX ? p.tiles : INT32_MAX);
  const dim3 threads(kTile, kTile);
  wide ? PlainGemm<double><<<blocks, threads, 0, scope.stream()>>>(p)
       : PlainGemm<float><<<blocks, threads, 0, scope.stream()>>>(p);
  scope.CheckLaunch("matmul");
}

void LaunchEpilogue(const GemmArgs& args, bool wide) {
  const PlainParams p = ParamsOf(args);
  const internal::LaunchScope scope(args.c.device);
  const int64_t numel = args.c.numel();
  wide ? EpilogueKernel<double><<<GridFor(numel, 256), 256, 0, scope.stream()>>>(p, numel)
       : EpilogueKernel<float><<<GridFor(numel, 256), 256, 0, scope.stream()>>>(p, numel);
  scope.CheckLaunch("matmul");
}

}  // namespace

void Gemm(const GemmArgs& args) {
  if (args.c.numel() == 0) return;
  const bool wide = args.a.dtype == DType::kF64 || args.b.dtype == DType::kF64 || args.c.dtype == DType::kF64;
  const bool empty_sum = args.a.size(args.a.rank() - 1) == 0;
  if (!empty_sum && GemmLt(args)) return;
  const bool has_epilogue = args.bias.present() || args.pre_activation.present() || args.gelu;
  if (!empty_sum && has_epilogue && args.c.dtype == (wide ? DType::kF64 : DType::kF32)) {
    GemmArgs product = args;
    product.bias = {};
    product.pre_activation = {};
    product.gelu = false;
    if (GemmLt(product)) return LaunchEpilogue(args, wide);
  }
  LaunchPlain(args, wide);
}

}  // namespace tessera::ops::cuda
