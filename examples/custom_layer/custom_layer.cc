// SPDX-License-Identifier: Apache-2.0
// A layer and a differentiable function of your own, outside the library, trained with a plain loop.
//
// The function is Snake: y = x + sin(a x)^2 / a, with a frequency a for each feature that is learned too (L. Ziyin et
// al., "Neural Networks Fail to Learn Periodic Functions and How to Fix It", 2020). Trained on a wave in [-8, 8], a
// small network with it goes on with the wave outside. Run it: custom_layer [steps]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "autograd/custom.h"
#include "autograd/elementwise.h"
#include "autograd/reduce.h"
#include "nn/linear.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"

using namespace tessera;

// A differentiable function: what forward computes and keeps, and one gradient per input. x (N, F), frequency (F).
Tensor Snake(const Input& x, const Input& frequency) {
  const auto forward = [](SavedValues& save, std::span<const Tensor> in) {
    save.Keep(0);
    save.Keep(1);  // a parameter is kept by reference: its data is asked for again in backward
    Tensor y = EmptyLike(in[0]);
    const float *x = in[0].Read().as<float>(), *a = in[1].Read().as<float>();
    float* out = y.Write().as<float>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      const float f = a[i % y.size(-1)], s = std::sin(f * x[i]);
      out[i] = x[i] + s * s / f;
    }
    return y;
  };
  const auto backward = [](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
    const Tensor x = saved[0], a = saved[1];
    Tensor dx = EmptyLike(x), da = Zeros(a.shape(), DType::kF32);
    const float *xs = x.Read().as<float>(), *as = a.Read().as<float>(), *dys = dy.Read().as<float>();
    float *dxs = dx.Write().as<float>(), *das = da.Write().as<float>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t feature = i % x.size(-1);
      const float f = as[feature], s = std::sin(f * xs[i]), s2 = std::sin(2 * f * xs[i]);
      dxs[i] = dys[i] * (1 + s2);
      das[feature] += dys[i] * (xs[i] * s2 - s * s / f) / f;
    }
    return {dx, da};
  };
  return CustomFunction("snake", {x, frequency}, forward, backward);
}

// A layer: its parameters are members, and Forward may use any function. Calling the layer runs Forward.
struct SnakeLayer : nn::Layer<SnakeLayer> {
  SnakeLayer(nn::Module* parent, std::string name, int64_t features)
      : Layer(parent, std::move(name)), frequency(this, "frequency", {features}, nn::Init::Ones()) {}
  Tensor Forward(const Tensor& x) { return Snake(x, frequency); }
  nn::Parameter frequency;
};

struct Net : nn::Layer<Net> {
  nn::Linear in{this, "in", 1, 32};
  SnakeLayer snake{this, "snake", 32};
  nn::Linear out{this, "out", 32, 1};
  Tensor Forward(const Tensor& x) { return out(snake(in(x))); }
};

float Wave(float x) { return std::sin(x) + 0.5f * std::cos(2 * x); }

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 3000;
  std::vector<float> xs, ys;
  for (int i = 0; i < 256; ++i) {
    xs.push_back(static_cast<float>(i - 128) / 16);
    ys.push_back(Wave(xs.back()));
  }
  const Tensor x = Tensor::From(xs, {256, 1}), y = Tensor::From(ys, {256, 1});

  Net net;
  nn::ResidentManager params(net, {.seed = 1});
  optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{.lr = 1e-2}), params.ranges());
  double first_loss = 0, loss = 0;
  for (int step = 1; step <= steps; ++step) {
    Tape tape;
    const Tensor error = Mean(Square(Sub(net(x), y)));
    tape.Backward(error);
    optimizer.Step(params.FinishGradients(), {.max_grad_norm = 1});
    loss = error.Item();
    if (step == 1) first_loss = loss;
    if (step == 1 || step % 500 == 0) std::printf("step %4d | mean squared error %.5f\n", step, loss);
  }
  std::printf("\n    x     wave   network   (trained on -8 .. 8)\n");
  for (float at = -12; at <= 12; at += 2) {
    const float guess = static_cast<float>(net(Tensor::From({at}, {1, 1})).Item());
    const std::string bar(static_cast<size_t>(std::clamp(std::lround(10 * (guess + 2)), 0L, 50L)), ' ');
    std::printf("%5.0f  %7.3f   %7.3f  |%s*\n", at, Wave(at), guess, bar.c_str());
  }
  return loss < first_loss ? 0 : 1;
}
