// SPDX-License-Identifier: Apache-2.0
// AdamW's rate over a flat range of 32 Mi elements (28 bytes each in f32: p, g, m, v read, p, m, v written) beside what
// this machine's memory gives to the same traffic without the arithmetic, in the same run and on the same threads.
#include <benchmark/benchmark.h>

#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tensor/thread_pool.h"

namespace tessera::optim {
namespace {

constexpr int64_t kNumel = int64_t{32} << 20;

Tensor Filled(DType dtype, double value) { return Full({kNumel}, dtype, value); }

// Reads four streams, writes three of them: the traffic of AdamW in f32.
void SameTraffic(benchmark::State& state) {
  const Tensor p = Filled(DType::kF32, 1), g = Filled(DType::kF32, 0.5), m = Filled(DType::kF32, 0);
  const Tensor squares = Filled(DType::kF32, 0);
  float* __restrict a = p.Write().as<float>();
  float* __restrict b = m.Write().as<float>();
  float* __restrict c = squares.Write().as<float>();
  const float* __restrict d = g.Read().as<float>();
  for (auto _ : state) {
    ParallelFor(kNumel, 16384, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        const float x = d[i];
        a[i] += x;
        b[i] += x;
        c[i] += x;
      }
    });
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kNumel * 28);
}

void Update(benchmark::State& state, const char* type, DType gradient, bool low_precision) {
  const auto optimizer = Optimizer::Create(type, {{"weight_decay", 0.1}});
  const Tensor p = Filled(DType::kF32, 1), g = Filled(gradient, 0.5);
  FlatSpan span{.master = p.Write(), .gradient = g.Read()};
  std::vector<Tensor> states;
  for (int i = 0; i < optimizer->state_count(); ++i) {
    states.push_back(Filled(DType::kF32, 0));
    span.states[static_cast<size_t>(i)] = states.back().Write();
  }
  const Tensor low = low_precision ? Filled(DType::kBF16, 0) : Tensor();
  if (low_precision) span.low_precision = low.Write();
  StepScalars scalars(optimizer->start_values());
  for (auto _ : state) {
    BeginStep(scalars);
    optimizer->Update(span, scalars);
    benchmark::ClobberMemory();
  }
  const int64_t bytes = 8 + 8 * optimizer->state_count() + ItemSize(gradient) + (low_precision ? 2 : 0);
  state.SetBytesProcessed(state.iterations() * kNumel * bytes);
}

void Norm(benchmark::State& state, DType dtype) {
  const Tensor g = Filled(dtype, 0.5);
  GradientNorm norm;
  for (auto _ : state) {
    norm.Clear();
    norm.Add(g.Read());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * g.bytes());
}

BENCHMARK(SameTraffic)->UseRealTime();
BENCHMARK_CAPTURE(Update, adamw_f32, "AdamW", DType::kF32, false)->UseRealTime();
BENCHMARK_CAPTURE(Update, adamw_bf16_gradient_and_weights, "AdamW", DType::kBF16, true)->UseRealTime();
BENCHMARK_CAPTURE(Update, lion_f32, "Lion", DType::kF32, false)->UseRealTime();
BENCHMARK_CAPTURE(Update, sgd_f32, "SGD", DType::kF32, false)->UseRealTime();
BENCHMARK_CAPTURE(Norm, f32, DType::kF32)->UseRealTime();
BENCHMARK_CAPTURE(Norm, bf16, DType::kBF16)->UseRealTime();

}  // namespace
}  // namespace tessera::optim

BENCHMARK_MAIN();
