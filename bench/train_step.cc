// SPDX-License-Identifier: Apache-2.0
// A training step of a GPT in f32 on the CPU, beside what Eigen alone would take for the step's matrix products.
//
//   build/bench/train_step [--preset=gpt2-124m|tiny] [--batch=4] [--seq=64] [--steps=20]
//
// One line: the step's median and parts, the share of the measured peak, and the ratio to FLOP / (Eigen's own rate on the
// same number of threads, over the same shapes, in this very run). For PyTorch's step on the same cores, run a GPT-2 of
// the same shape there right before or after: machines are noisy, so only neighbours count.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "autograd/loss.h"
#include "autograd/tape.h"
#include "bench/gemm_peers.h"
#include "bench/timing.h"
#include "nn/models/gpt.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tensor/context.h"
#include "tensor/cpu_isa.h"
#include "tensor/rng.h"
#include "tensor/thread_pool.h"

namespace tessera::bench {
namespace {

struct Shape3 {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  int64_t count;
};

// The products of one step over `rows` tokens: forward (x W^T), dx (dy W) and dW (dy^T x) of every linear map.
std::vector<Shape3> StepProducts(const nn::GptConfig& config, int64_t rows) {
  const int64_t c = config.n_embd, layers = config.n_layer;
  std::vector<Shape3> products;
  const auto linear = [&](int64_t in, int64_t out, int64_t count) {
    products.push_back({rows, out, in, false, true, count});
    products.push_back({rows, in, out, false, false, count});
    products.push_back({out, in, rows, true, false, count});
  };
  linear(c, 3 * c, layers);
  linear(c, c, layers);
  linear(c, 4 * c, layers);
  linear(4 * c, c, layers);
  linear(c, config.vocab_size, 1);
  return products;
}

// Seconds that Eigen takes for all products of one step on `threads` threads: the best of three for each shape.
double EigenSeconds(const std::vector<Shape3>& products, int threads, double* flop) {
  double seconds = 0;
  *flop = 0;
  for (const Shape3& p : products) {
    std::vector<float> a(static_cast<size_t>(p.m * p.k), 0.5f), b(static_cast<size_t>(p.k * p.n), 0.25f);
    std::vector<float> c(static_cast<size_t>(p.m * p.n));
    const Product product{p.m, p.n, p.k, p.transpose_a, p.transpose_b, a.data(), b.data(), c.data()};
    EigenProduct(product, threads);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const double start = Now();
      EigenProduct(product, threads);
      times.push_back(Now() - start);
    }
    seconds += Median(times) * static_cast<double>(p.count);
    *flop += 2.0 * static_cast<double>(p.m * p.n * p.k * p.count);
  }
  return seconds;
}

int Main(int argc, char** argv) {
  const bool tiny = Flag(argc, argv, "--preset", "gpt2-124m") == "tiny";
  const int64_t batch = std::atoll(Flag(argc, argv, "--batch", "4").c_str()),
                tokens = std::atoll(Flag(argc, argv, "--seq", "64").c_str());
  const int64_t steps = std::atoll(Flag(argc, argv, "--steps", "20").c_str());
  const nn::GptConfig config = tiny ? nn::GptConfig::Tiny() : nn::GptConfig::Gpt2_124M();

  nn::Gpt model(config);
  nn::ResidentManager params(model, {.dtype = DType::kF32, .seed = 1});
  optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{.lr = 1e-4, .weight_decay = 0.01}),
                                  params.ranges());
  std::vector<double> forward, backward, update, whole;
  for (int64_t step = 0; step < steps + 2; ++step) {
    std::vector<int64_t> ids(static_cast<size_t>(batch * tokens)), targets(ids.size());
    const RngKey key = RngKey(9).With(static_cast<uint64_t>(step));  // fresh tokens: a memorised batch trains on zeros
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = key.Bits(2 * i) % config.vocab_size;
      targets[i] = key.Bits(2 * i + 1) % config.vocab_size;
    }
    const Tensor x = Tensor::From(ids, {batch, tokens}), y = Tensor::From(targets, {batch, tokens});
    const double start = Now();
    Tape tape;
    const Loss loss = model(x, y);
    const double after_forward = Now();
    Backward(loss);
    const double after_backward = Now();
    optimizer.Step(params.FinishGradients(), {.max_grad_norm = 1.0});
    const double end = Now();
    if (step < 2) continue;  // first touch of memory
    forward.push_back(after_forward - start);
    backward.push_back(after_backward - after_forward);
    update.push_back(end - after_backward);
    whole.push_back(end - start);
  }
  const int threads = NumThreads();
  double flop;
  const double eigen = EigenSeconds(StepProducts(config, batch * tokens), threads, &flop);
  const double step_seconds = Median(whole), peak = MeasuredPeak(threads);
  std::printf(
      "train_step %s f32 batch %lld seq %lld, %d threads, %s: median %.4f s (min %.4f) = forward+head %.4f + backward "
      "%.4f + "
      "update %.4f; %.1f tok/s\n",
      tiny ? "tiny" : "gpt2-124m", static_cast<long long>(batch), static_cast<long long>(tokens), threads,
      std::string(Name(ActiveIsa())).c_str(), step_seconds, *std::min_element(whole.begin(), whole.end()),
      Median(forward), Median(backward), Median(update), static_cast<double>(batch * tokens) / step_seconds);
  std::printf(
      "products %.1f GFLOP: %.1f GFLOP/s in the step (%.0f %% of the measured peak %.0f); Eigen alone %.4f s (%.1f "
      "GFLOP/s); step / Eigen = %.3f\n",
      flop / 1e9, flop / 1e9 / step_seconds, 100 * flop / step_seconds / peak, peak / 1e9, eigen, flop / 1e9 / eigen,
      step_seconds / eigen);
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
