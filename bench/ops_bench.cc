// SPDX-License-Identifier: Apache-2.0
// Times of single operations, forward and backward, at the shapes of GPT-2 124M, and what the tape costs per operation.
//
//   bench/ops_bench --benchmark_filter=Attention
//
// Attention counts the multiply-adds of all T x T scores, causal or not, so a causal rate may exceed that of a GEMM.
#include <ctime>

#include <benchmark/benchmark.h>

#include "autograd/attention.h"
#include "autograd/linear.h"
#include "autograd/loss.h"
#include "autograd/norm.h"
#include "autograd/softmax.h"
#include "autograd/swiglu.h"
#include "tensor/context.h"
#include "tensor/ops/gemm.h"
#include "tensor/ops/softmax.h"
#include "tensor/rng.h"

namespace tessera {
namespace {

Tensor Random(const Shape& shape, DType dtype = DType::kF32) {
  const Tensor x = Empty(shape, DType::kF32);
  float* values = x.Write().as<float>();
  const RngKey key(7);
  for (int64_t i = 0; i < x.numel(); ++i) values[i] = static_cast<float>(2 * key.Uniform(static_cast<uint64_t>(i)) - 1);
  return dtype == DType::kF32 ? x : CopyTo(x, dtype);
}

Tensor Targets(int64_t rows, int64_t classes) {
  const Tensor targets = Empty({rows}, DType::kI64);
  for (int64_t row = 0; row < rows; ++row) targets.Write().as<int64_t>()[row] = row * 7919 % classes;
  return targets;
}

// f(x) on a tape, and its backward with a gradient of the output's shape.
template <class F>
void ForwardBackward(const Tensor& x, const Tensor& dy, const F& f) {
  Tape tape;
  const Tensor y = f(tape.Watch(x));
  tape.Backward(y, dy);
  benchmark::ClobberMemory();
}

// ---- attention: (4, T, 12, 64), packed ----

void AttentionForward(benchmark::State& state, DType dtype) {
  const int64_t batch = 4, time = state.range(0), heads = 12, width = 64;
  const Tensor qkv = Random({batch, time, 3 * heads * width}, dtype);
  for (auto _ : state) benchmark::DoNotOptimize(AttentionPacked(qkv, heads, heads, {.causal = true}));
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * static_cast<double>(batch * heads * time * time * width),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void AttentionBoth(benchmark::State& state, DType dtype) {
  const int64_t batch = 4, time = state.range(0), heads = 12, width = 64;
  const Tensor qkv = Random({batch, time, 3 * heads * width}, dtype), dy = Random({batch, time, heads * width}, dtype);
  for (auto _ : state) {
    ForwardBackward(qkv, dy, [&](const Tensor& x) { return AttentionPacked(x, heads, heads, {.causal = true}); });
  }
  state.counters["GFLOP/s"] = benchmark::Counter(14e-9 * static_cast<double>(batch * heads * time * time * width),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

// One new token of each of 4 sequences, reading T cached keys.
void AttentionDecode(benchmark::State& state) {
  const int64_t batch = 4, heads = 12, width = 64;
  const Tensor q = Random({batch, 1, heads, width}), k = Random({batch, state.range(0), heads, width});
  for (auto _ : state) benchmark::DoNotOptimize(Attention(q, k, k, {.causal = true}));
  state.SetBytesProcessed(state.iterations() * 2 * k.bytes());
}

// ---- norms and activations over (rows, 768) ----

void LayerNormBoth(benchmark::State& state, DType dtype) {
  const Tensor x = Random({state.range(0), 768}, dtype), weight = Random({768}, dtype), bias = Random({768}, dtype);
  for (auto _ : state) ForwardBackward(x, x, [&](const Tensor& in) { return LayerNorm(in, weight, bias, 1e-5); });
  state.SetBytesProcessed(state.iterations() * 5 * x.bytes());  // x, y; x, dy, dx
}

void RmsNormBoth(benchmark::State& state, DType dtype) {
  const Tensor x = Random({state.range(0), 768}, dtype), weight = Random({768}, dtype);
  for (auto _ : state) ForwardBackward(x, x, [&](const Tensor& in) { return RmsNorm(in, weight, 1e-5); });
  state.SetBytesProcessed(state.iterations() * 5 * x.bytes());
}

void AddLayerNormBoth(benchmark::State& state, DType dtype) {
  const Tensor x = Random({state.range(0), 768}, dtype), weight = Random({768}, dtype), bias = Random({768}, dtype);
  for (auto _ : state) {
    ForwardBackward(x, x, [&](const Tensor& in) { return AddLayerNorm(in, x, weight, bias, 1e-5).normed; });
  }
  state.SetBytesProcessed(state.iterations() * 7 * x.bytes());  // x, residual, sum, y; sum, dy, dx
}

void SwiGluBoth(benchmark::State& state, DType dtype) {
  const Tensor x = Random({state.range(0), 2048}, dtype);
  for (auto _ : state) ForwardBackward(x, x, [&](const Tensor& in) { return SwiGlu(in, x); });
  state.SetBytesProcessed(state.iterations() * 8 * x.bytes());  // gate, up, y; dy, gate, up, dgate, dup
}

// ---- the head: 256 tokens, 768 features, 50257 classes ----

constexpr int64_t kTokens = 256, kFeatures = 768, kClasses = 50257;
const double kHeadGflop = 6e-9 * static_cast<double>(kTokens * kFeatures * kClasses);

// The three products alone, the floor of everything below.
void HeadProducts(benchmark::State& state) {
  const Tensor x = Random({kTokens, kFeatures}), weight = Random({kClasses, kFeatures});
  // Filled, so that no fresh page is counted.
  const Tensor logits = Full({kTokens, kClasses}, DType::kF32, 0), dweight = Full(weight.shape(), DType::kF32, 0);
  const Tensor dx = EmptyLike(x);
  const auto transposed = [](const Tensor& a) { return a.WithLayout(a.layout().Transpose(0, 1)); };
  for (auto _ : state) {
    ops::Gemm({.a = x.Read(), .b = transposed(weight).Read(), .c = logits.Write(), .bias = {}, .pre_activation = {}});
    ops::Gemm({.a = logits.Read(), .b = weight.Read(), .c = dx.Write(), .bias = {}, .pre_activation = {}});
    ops::Gemm({.a = transposed(logits).Read(), .b = x.Read(), .c = dweight.Write(), .bias = {}, .pre_activation = {}});
  }
  state.counters["GFLOP/s"] = benchmark::Counter(kHeadGflop, benchmark::Counter::kIsIterationInvariantRate);
}

// A parameter without a manager: one buffer for the gradient.
class HeadWeight final : public ParamSource {
 public:
  const std::string& path() const override { return path_; }
  const Shape& shape() const override { return data_.shape(); }
  DType dtype() const override { return data_.dtype(); }
  bool requires_grad() const override { return true; }
  Tensor Data() override { return data_; }
  GradTarget NextGradTarget() override { return {grad_, false}; }
  void GradReady() override {}

 private:
  std::string path_ = "head";
  Tensor data_ = Random({kClasses, kFeatures}), grad_ = EmptyLike(data_);
};

void HeadFused(benchmark::State& state) {
  const Tensor x = Random({kTokens, kFeatures}), targets = Targets(kTokens, kClasses);
  HeadWeight weight;
  for (auto _ : state) {
    Tape tape;
    Backward(LinearCrossEntropy(tape.Watch(x), ParamRef(&weight), targets, {.chunk_bytes = state.range(0) << 20}));
  }
  state.counters["GFLOP/s"] = benchmark::Counter(kHeadGflop, benchmark::Counter::kIsIterationInvariantRate);
}

void HeadUnfused(benchmark::State& state) {
  const Tensor x = Random({kTokens, kFeatures}), targets = Targets(kTokens, kClasses);
  HeadWeight weight;
  for (auto _ : state) {
    Tape tape;
    Backward(CrossEntropy(Linear(tape.Watch(x), ParamRef(&weight)), targets));
  }
  state.counters["GFLOP/s"] = benchmark::Counter(kHeadGflop, benchmark::Counter::kIsIterationInvariantRate);
}

void CrossEntropyBoth(benchmark::State& state) {
  const Tensor logits = Random({kTokens, kClasses}), targets = Targets(kTokens, kClasses);
  for (auto _ : state) {
    Tape tape;
    Backward(CrossEntropy(tape.Watch(logits), targets));
  }
  state.SetBytesProcessed(state.iterations() * 3 * logits.bytes());
}

// ---- the tape ----

// This thread's own time, so that other load on the machine does not count.
double ThreadNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

// A chain of softmaxes of one element, with and without the tape: what remains is node, slots, saved values, tensors.
void TapePerOp(benchmark::State& state) {
  constexpr int kOps = 200;
  const Tensor x = Full({1}, DType::kF32, 0.5), y = EmptyLike(x), dx = EmptyLike(x);
  double taped_ns = 0, raw_ns = 0;
  for (auto _ : state) {
    const double start = ThreadNs();
    {
      Tape tape;
      Tensor value = tape.Watch(x);
      for (int i = 0; i < kOps; ++i) value = Softmax(value);
      tape.Backward(value);
    }
    const double middle = ThreadNs();
    for (int i = 0; i < kOps; ++i) {
      ops::SoftmaxForward({.x = x.Read(), .y = y.Write()});
      ops::SoftmaxBackward({.dy = y.Read(), .y = y.Read(), .dx = dx.Write()});
    }
    const double end = ThreadNs();
    taped_ns += (middle - start) / kOps;
    raw_ns += (end - middle) / kOps;
  }
  state.counters["taped_ns"] = benchmark::Counter(taped_ns, benchmark::Counter::kAvgIterations);
  state.counters["raw_ns"] = benchmark::Counter(raw_ns, benchmark::Counter::kAvgIterations);
  state.counters["tape_ns"] = benchmark::Counter(taped_ns - raw_ns, benchmark::Counter::kAvgIterations);
}

#define TESSERA_TIMED(...) __VA_ARGS__->UseRealTime()->Unit(benchmark::kMicrosecond)

TESSERA_TIMED(BENCHMARK_CAPTURE(AttentionForward, f32, DType::kF32)->Arg(64)->Arg(256)->Arg(1024));
TESSERA_TIMED(BENCHMARK_CAPTURE(AttentionBoth, f32, DType::kF32)->Arg(64)->Arg(256)->Arg(1024));
TESSERA_TIMED(BENCHMARK_CAPTURE(AttentionBoth, bf16, DType::kBF16)->Arg(64)->Arg(1024));
TESSERA_TIMED(BENCHMARK(AttentionDecode)->Arg(64)->Arg(1024));
TESSERA_TIMED(BENCHMARK_CAPTURE(LayerNormBoth, f32, DType::kF32)->Arg(256)->Arg(4096));
TESSERA_TIMED(BENCHMARK_CAPTURE(LayerNormBoth, bf16, DType::kBF16)->Arg(256));
TESSERA_TIMED(BENCHMARK_CAPTURE(RmsNormBoth, f32, DType::kF32)->Arg(256)->Arg(4096));
TESSERA_TIMED(BENCHMARK_CAPTURE(AddLayerNormBoth, f32, DType::kF32)->Arg(256)->Arg(4096));
TESSERA_TIMED(BENCHMARK_CAPTURE(SwiGluBoth, f32, DType::kF32)->Arg(256)->Arg(4096));
TESSERA_TIMED(BENCHMARK(HeadProducts));
TESSERA_TIMED(BENCHMARK(HeadFused)->Arg(64)->Arg(16));
TESSERA_TIMED(BENCHMARK(HeadUnfused));
TESSERA_TIMED(BENCHMARK(CrossEntropyBoth));
TESSERA_TIMED(BENCHMARK(TapePerOp));

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
