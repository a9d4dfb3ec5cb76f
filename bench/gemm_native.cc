// SPDX-License-Identifier: Apache-2.0
// The part of gemm_bench that is compiled with -march=native: plain Eigen, and the machine's peak.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <Eigen/Core>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench/gemm_peers.h"

namespace tessera::bench {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));

// FLOP/s of one thread: twelve independent chains hide the latency of the multiply-add.
double PeakOfOneThread() {
  constexpr int kChains = 12;
  constexpr int64_t kSteps = 4000000;
  Vector sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999f, addend = Vector{} + 0.001f;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = sum[i] * factor + addend;
      asm volatile("" : "+x"(sum[i]));
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return 2.0 * kChains * (kVectorBytes / 4) * kSteps / seconds.count();
}

}  // namespace

void EigenProduct(const Product& product, int threads) {
  Eigen::setNbThreads(threads);
  const int64_t m = product.m, n = product.n, k = product.k;
  Eigen::Map<RowMajor> c(product.c, m, n);
  const auto left = [&](auto&& a) {
    if (product.transpose_b) {
      c.noalias() = a * Eigen::Map<const RowMajor>(product.b, n, k).transpose();
    } else {
      c.noalias() = a * Eigen::Map<const RowMajor>(product.b, k, n);
    }
  };
  if (product.transpose_a) {
    left(Eigen::Map<const RowMajor>(product.a, k, m).transpose());
  } else {
    left(Eigen::Map<const RowMajor>(product.a, m, k));
  }
}

double MeasuredPeak(int threads) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> rates(static_cast<size_t>(threads));
    std::vector<std::thread> workers;
    for (double& rate : rates) workers.emplace_back([&rate] { rate = PeakOfOneThread(); });
    for (std::thread& worker : workers) worker.join();
    double sum = 0;
    for (double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace tessera::bench
