// SPDX-License-Identifier: Apache-2.0
// The GPU's own limits, measured, and what ops reach of them. `bench/gpu.sh` runs it.
//
// A figure is the median of several timings by CUDA events, each over a few calls that go round several sets of tensors, so
// that a call finds little of its own in the cache. Inputs are random: zeros run faster than real data.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include "tensor/context.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/runtime.cuh"
#include "tensor/ops/copy.h"
#include "tensor/ops/gemm.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/rms_norm.h"

namespace tessera {
namespace {

constexpr int kSets = 4, kTimings = 15;

// Median seconds of call(set).
double Seconds(const std::function<void(int)>& call) {
  cudaEvent_t begin, end;
  TESSERA_CUDA_CALL(cudaEventCreate(&begin));
  TESSERA_CUDA_CALL(cudaEventCreate(&end));
  for (int i = 0; i < 2 * kSets; ++i) call(i % kSets);
  std::vector<double> seconds;
  for (int timing = 0; timing < kTimings; ++timing) {
    TESSERA_CUDA_CALL(cudaEventRecord(begin, nullptr));
    for (int i = 0; i < 2 * kSets; ++i) call(i % kSets);
    TESSERA_CUDA_CALL(cudaEventRecord(end, nullptr));
    TESSERA_CUDA_CALL(cudaEventSynchronize(end));
    float milliseconds = 0;
    TESSERA_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin, end));
    seconds.push_back(milliseconds / 1e3 / (2 * kSets));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(seconds.begin(), seconds.begin() + kTimings / 2, seconds.end());
  return seconds[kTimings / 2];
}

// Normal values; a block of 2^20 of them, repeated.
Tensor Random(const Shape& shape, DType dtype) {
  constexpr int64_t kBlock = 1 << 20;
  static const Tensor block = [] {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(kBlock);
    for (float& value : values) value = normal(generator);
    return CopyTo(Tensor::From(values, {kBlock}), Cuda());
  }();
  const Tensor x = Empty(shape, dtype);
  const Tensor flat = x.WithLayout(Layout::Contiguous({x.numel()}));
  for (int64_t first = 0; first < x.numel(); first += kBlock) {
    const int64_t length = std::min(kBlock, x.numel() - first);
    ops::Copy({.x = block.WithLayout(block.layout().Narrow(0, 0, length)).Read(),
               .out = flat.WithLayout(flat.layout().Narrow(0, first, length)).Write()});
  }
  return x;
}

std::vector<Tensor> Sets(const Shape& shape, DType dtype) {
  std::vector<Tensor> sets;
  for (int i = 0; i < kSets; ++i) sets.push_back(Random(shape, dtype));
  return sets;
}

void Print(const std::string& what, double seconds, double amount, const char* unit, double limit) {
  std::printf("%-58s %9.1f us %9.1f %-8s %5.1f %%\n", what.c_str(), seconds * 1e6, amount / seconds, unit,
              100 * amount / seconds / limit);
}

double CopyLimit() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const std::vector<Tensor> x = Sets({kBytes}, DType::kU8), y = Sets({kBytes}, DType::kU8);
  const double driver = Seconds([&](int set) {
    const size_t i = static_cast<size_t>(set);
    TESSERA_CUDA_CALL(cudaMemcpyAsync(y[i].Write().data, x[i].Read().data, kBytes, cudaMemcpyDeviceToDevice, nullptr));
  });
  const double limit = 2 * kBytes / 1e9 / driver;
  Print("limit: the driver's copy of 1 GiB, read + written", driver, 2 * kBytes / 1e9, "GB/s", limit);
  const double own = Seconds([&](int set) {
    const size_t i = static_cast<size_t>(set);
    ops::Copy({.x = x[i].Read(), .out = y[i].Write()});
  });
  Print("copy, 1 GiB", own, 2 * kBytes / 1e9, "GB/s", limit);
  return limit;
}

double ProductLimit(DType dtype, int64_t n) {
  const std::vector<Tensor> a = Sets({n, n}, dtype), b = Sets({n, n}, dtype), c = Sets({n, n}, dtype);
  const double seconds = Seconds([&](int set) {
    const size_t i = static_cast<size_t>(set);
    ops::Gemm({.a = a[i].Read(), .b = b[i].Read(), .c = c[i].Write()});
  });
  const double flop = 2e-12 * static_cast<double>(n * n) * static_cast<double>(n);
  Print(Str("limit: matmul ", n, "^3 ", Name(dtype)), seconds, flop, "TFLOP/s", flop / seconds);
  return flop / seconds;
}

void LinearRows(DType dtype, int64_t rows, int64_t in, int64_t out, double limit) {
  const std::vector<Tensor> x = Sets({rows, in}, dtype), w = Sets({out, in}, dtype), b = Sets({out}, dtype),
                            y = Sets({rows, out}, dtype), s = Sets({rows, out}, dtype), dx = Sets({rows, in}, dtype),
                            dw = Sets({out, in}, DType::kF32), db = Sets({out}, DType::kF32);
  const double flop = 2e-12 * static_cast<double>(rows * in) * static_cast<double>(out);
  const std::string what = Str("linear ", Name(dtype), " ", rows, " x ", in, " -> ", out);
  const auto time = [&](const char* part, double times, const std::function<void(size_t)>& call) {
    Print(what + part, Seconds([&](int set) { call(static_cast<size_t>(set)); }), times * flop, "TFLOP/s", limit);
  };
  time(", bias", 1, [&](size_t i) {
    ops::LinearForward({.x = x[i].Read(), .weight = w[i].Read(), .bias = b[i].Read(), .y = y[i].Write()});
  });
  time(", bias, gelu, saved", 1, [&](size_t i) {
    ops::LinearForward({.x = x[i].Read(),
                        .weight = w[i].Read(),
                        .bias = b[i].Read(),
                        .y = y[i].Write(),
                        .gelu = true,
                        .pre_activation = s[i].Write()});
  });
  time(", dx", 1,
       [&](size_t i) { ops::LinearBackward({.dy = y[i].Read(), .weight = w[i].Read(), .dx = dx[i].Write()}); });
  time(", dweight += in f32", 1, [&](size_t i) {
    ops::LinearBackward({.dy = y[i].Read(), .x = x[i].Read(), .dweight = dw[i].Write(), .accumulate_dweight = true});
  });
  time(", dx, dweight, dbias", 2, [&](size_t i) {
    ops::LinearBackward({.dy = y[i].Read(),
                         .x = x[i].Read(),
                         .weight = w[i].Read(),
                         .dx = dx[i].Write(),
                         .dweight = dw[i].Write(),
                         .dbias = db[i].Write()});
  });
}

void NormRows(DType dtype, int64_t rows, int64_t width, double limit) {
  const Shape shape{rows, width};
  const std::vector<Tensor> x = Sets(shape, dtype), r = Sets(shape, dtype), sum = Sets(shape, dtype),
                            y = Sets(shape, dtype);
  const Tensor weight = Random({width}, dtype), rstd = Empty({rows}, DType::kF32),
               dweight = Empty({width}, DType::kF32),
               workspace = Empty({ops::RmsNormWorkspaceNumel(rows, width)}, DType::kF32);
  const double pass = static_cast<double>(rows * width * ItemSize(dtype)) / 1e9;
  const std::string what = Str("rms_norm ", Name(dtype), " ", rows, " x ", width);
  // `passes`: how often the least possible traffic moves a tensor of x's size.
  const auto time = [&](const char* part, double passes, const std::function<void(size_t)>& call) {
    Print(what + part, Seconds([&](int set) { call(static_cast<size_t>(set)); }), passes * pass, "GB/s", limit);
  };
  time(", forward", 2, [&](size_t i) {
    ops::RmsNormForward({.x = x[i].Read(), .weight = weight.Read(), .y = y[i].Write(), .rstd = rstd.Write()});
  });
  time(", forward with residual", 4, [&](size_t i) {
    ops::RmsNormForward({.x = x[i].Read(),
                         .weight = weight.Read(),
                         .y = y[i].Write(),
                         .rstd = rstd.Write(),
                         .residual = r[i].Read(),
                         .sum = sum[i].Write()});
  });
  time(", dx", 3, [&](size_t i) {
    ops::RmsNormBackward(
        {.dy = r[i].Read(), .x = x[i].Read(), .weight = weight.Read(), .rstd = rstd.Read(), .dx = y[i].Write()});
  });
  time(", dx + dsum, dweight", 4, [&](size_t i) {
    ops::RmsNormBackward({.dy = r[i].Read(),
                          .x = x[i].Read(),
                          .weight = weight.Read(),
                          .rstd = rstd.Read(),
                          .dsum = sum[i].Read(),
                          .dx = y[i].Write(),
                          .dweight = dweight.Write(),
                          .workspace = workspace.Write()});
  });
}

int Main() {
  std::printf("%s\n", CudaVersions().c_str());
  if (CudaDeviceCount() == 0) {
    std::printf("%s\n", CudaAbsence().c_str());
    return 0;
  }
  Context context;
  context.device = Cuda();
  const ContextGuard guard(context);
  std::printf("%-58s %12s %18s %7s\n", "median of 15 timings", "time", "rate", "limit");
  const double copy = CopyLimit();
  const double bf16 = ProductLimit(DType::kBF16, 8192), f32 = ProductLimit(DType::kF32, 4096);
  LinearRows(DType::kBF16, 8192, 4096, 4096, bf16);
  LinearRows(DType::kBF16, 8192, 768, 3072, bf16);
  LinearRows(DType::kF32, 4096, 2048, 2048, f32);
  NormRows(DType::kBF16, 16384, 4096, copy);
  NormRows(DType::kBF16, 65536, 768, copy);
  NormRows(DType::kF32, 16384, 4096, copy);
  return 0;
}

}  // namespace
}  // namespace tessera

int main() {
  try {
    return tessera::Main();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
