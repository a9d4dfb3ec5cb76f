// SPDX-License-Identifier: Apache-2.0
// Matrix products at the shapes of a GPT-2 124M training step with 256 tokens: this library's beside plain Eigen,
// OpenBLAS and oneDNN (each where the build found it), on the same number of threads (TESSERA_NUM_THREADS, or all).
//
//   bench/gemm_bench --benchmark_filter=768x3072
//
// forward: y = x W^T; dx = dy W; dw = dy^T x, for a layer of K inputs and N outputs. On a shared machine the mean says
// more about the neighbours than about the code, so the table at the end holds each one's best run; its last column is
// our share of the multiply-add peak measured in the same process.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <unistd.h>

#ifdef TESSERA_BENCH_OPENBLAS
#include <cblas.h>
#endif
#ifdef TESSERA_BENCH_ONEDNN
#include <dnnl.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench/gemm_peers.h"
#include "tensor/context.h"
#include "tensor/ops/gemm.h"
#include "tensor/tensor.h"
#include "tensor/thread_pool.h"

namespace tessera::bench {
namespace {

struct Shape3 {
  int64_t m, k, n;
};
constexpr Shape3 kShapes[] = {{256, 768, 2304},  {256, 768, 768}, {256, 768, 3072},  {256, 3072, 768},
                              {256, 768, 50257}, {512, 512, 512}, {2048, 2048, 2048}};
constexpr const char* kForms[] = {"forward", "dx", "dw"};

Tensor Filled(int64_t rows, int64_t cols) {
  const Tensor x = Empty({rows, cols}, DType::kF32);
  float* data = x.Write().as<float>();
  uint32_t state = 1;
  for (int64_t i = 0; i < rows * cols; ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  return x;
}

void TesseraProduct(const Product& product, int) {
  const Layout a = product.transpose_a ? Layout::Contiguous({product.k, product.m}).Transpose(0, 1)
                                       : Layout::Contiguous({product.m, product.k});
  const Layout b = product.transpose_b ? Layout::Contiguous({product.n, product.k}).Transpose(0, 1)
                                       : Layout::Contiguous({product.k, product.n});
  ops::Gemm({.a = {product.a, a, DType::kF32, kCpu},
             .b = {product.b, b, DType::kF32, kCpu},
             .c = {product.c, Layout::Contiguous({product.m, product.n}), DType::kF32, kCpu}});
}

#ifdef TESSERA_BENCH_OPENBLAS
void OpenBlasProduct(const Product& product, int threads) {
  openblas_set_num_threads(threads);
  cblas_sgemm(
      CblasRowMajor, product.transpose_a ? CblasTrans : CblasNoTrans, product.transpose_b ? CblasTrans : CblasNoTrans,
      static_cast<int>(product.m), static_cast<int>(product.n), static_cast<int>(product.k), 1.0f, product.a,
      static_cast<int>(product.transpose_a ? product.m : product.k), product.b,
      static_cast<int>(product.transpose_b ? product.k : product.n), 0.0f, product.c, static_cast<int>(product.n));
}
#endif

#ifdef TESSERA_BENCH_ONEDNN
void OneDnnProduct(const Product& product, int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#else
  (void)threads;
#endif
  dnnl_sgemm(product.transpose_a ? 'T' : 'N', product.transpose_b ? 'T' : 'N', product.m, product.n, product.k, 1.0f,
             product.a, product.transpose_a ? product.m : product.k, product.b,
             product.transpose_b ? product.k : product.n, 0.0f, product.c, product.n);
}
#endif

using Run = void (*)(const Product&, int);
struct Library {
  const char* name;
  Run run;
};
constexpr Library kLibraries[] = {
    {"tessera", TesseraProduct},
    {"eigen", EigenProduct},
#ifdef TESSERA_BENCH_OPENBLAS
    {"openblas", OpenBlasProduct},
#endif
#ifdef TESSERA_BENCH_ONEDNN
    {"onednn", OneDnnProduct},
#endif
};

using Rates = std::map<std::string, std::map<std::string, double>>;  // FLOP/s by case and library

Product Prepare(const std::string& form, const Shape3& shape, std::vector<Tensor>* tensors) {
  const Tensor x = Filled(shape.m, shape.k), w = Filled(shape.n, shape.k), y = Filled(shape.m, shape.n);
  *tensors = {x, w, y};
  float *px = x.Write().as<float>(), *pw = w.Write().as<float>(), *py = y.Write().as<float>();
  if (form == "forward") return {shape.m, shape.n, shape.k, false, true, px, pw, py};
  if (form == "dx") return {shape.m, shape.k, shape.n, false, false, py, pw, px};
  return {shape.n, shape.k, shape.m, true, false, py, px, pw};
}

void RunCase(benchmark::State& state, const Library& library, const std::string& form, const Shape3& shape,
             double* best) {
  std::vector<Tensor> tensors;
  const Product product = Prepare(form, shape, &tensors);
  const double flop = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.k) * static_cast<double>(shape.n);
  const int threads = NumThreads();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    library.run(product, threads);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count());
    *best = std::max(*best, flop / seconds.count());
  }
  state.counters["FLOP/s"] = benchmark::Counter(flop, benchmark::Counter::kIsIterationInvariantRate);
}

void PrintTable(Rates& rates, double peak) {
  std::printf("\nbest GFLOP/s on %d thread(s), kernels %s, multiply-add peak %.0f\n%-26s", NumThreads(),
              std::string(Name(ActiveIsa())).c_str(), peak / 1e9, "");
  for (const Library& library : kLibraries) std::printf("%10s", library.name);
  std::printf("%10s\n", "of peak");
  for (const char* form : kForms) {
    for (const Shape3& shape : kShapes) {
      const std::string name = Str(form, "/", shape.m, "x", shape.k, "x", shape.n);
      if (rates[name]["tessera"] == 0) continue;
      std::printf("%-26s", name.c_str());
      for (const Library& library : kLibraries) std::printf("%10.0f", rates[name][library.name] / 1e9);
      std::printf("%9.0f%%\n", 100 * rates[name]["tessera"] / peak);
    }
  }
}

// Debian's OpenBLAS does not know newer CPUs and falls back to its slowest kernels. It reads the variable while it is
// loaded, so the process starts itself again.
void ChooseOpenBlasCore(char** argv) {
#ifdef TESSERA_BENCH_OPENBLAS
  if (std::getenv("OPENBLAS_CORETYPE") == nullptr && ActiveIsa() != CpuIsa::kBase) {
    setenv("OPENBLAS_CORETYPE", ActiveIsa() == CpuIsa::kAvx512 ? "SkylakeX" : "Haswell", 1);
    execv("/proc/self/exe", argv);
  }
  std::printf("OpenBLAS core: %s\n", openblas_get_corename());
#else
  (void)argv;
#endif
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  ChooseOpenBlasCore(argv);
  Rates rates;
  for (const char* form : kForms) {
    for (const Shape3& shape : kShapes) {
      const std::string name = tessera::Str(form, "/", shape.m, "x", shape.k, "x", shape.n);
      for (const Library& library : kLibraries) {
        double* best = &rates[name][library.name];
        benchmark::RegisterBenchmark(tessera::Str(name, "/", library.name).c_str(),
                                     [=](benchmark::State& state) { RunCase(state, library, form, shape, best); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.2);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const double peak = MeasuredPeak(tessera::NumThreads());
  benchmark::RunSpecifiedBenchmarks();
  PrintTable(rates, peak);
  return 0;
}
