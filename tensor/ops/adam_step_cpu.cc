// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/adam_step.h"
#include "tensor/ops/flat_step_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
struct Factors {
  A gradient, beta1, one_minus_beta1, beta2, one_minus_beta2, momentum_correction, square_correction, eps, decay,
      minus_lr;
};

template <bool kDecoupled, class A>
void UpdateTile(int64_t n, A* __restrict p, A* __restrict m, A* __restrict v, const A* __restrict gradient,
                const Factors<A> f) {
  for (int64_t i = 0; i < n; ++i) {
    A g = gradient[i] * f.gradient;
    if constexpr (!kDecoupled) g = Fma(f.decay, p[i], g);
    const A mean = Fma(f.beta1, m[i], f.one_minus_beta1 * g);
    const A square = Fma(f.one_minus_beta2 * g, g, f.beta2 * v[i]);
    m[i] = mean;
    v[i] = square;
    A update = mean * f.momentum_correction / Fma(std::sqrt(square), f.square_correction, f.eps);
    if constexpr (kDecoupled) update = Fma(f.decay, p[i], update);
    p[i] = Fma(f.minus_lr, update, p[i]);
  }
}

template <class A>
void Step(const AdamStepArgs& args) {
  const double* s = args.scalars.as<double>();
  const auto in_a = [](double x) { return static_cast<A>(x); };
  const Factors<A> f{.gradient = in_a(s[kGradientFactor]),
                     .beta1 = in_a(s[kMomentum]),
                     .one_minus_beta1 = in_a(1.0 - s[kMomentum]),
                     .beta2 = in_a(s[kBeta2]),
                     .one_minus_beta2 = in_a(1.0 - s[kBeta2]),
                     .momentum_correction = in_a(args.bias_correction ? s[kMomentumCorrection] : 1.0),
                     .square_correction = in_a(args.bias_correction ? s[kSquareCorrection] : 1.0),
                     .eps = in_a(args.eps),
                     .decay = in_a(args.weight_decay),
                     .minus_lr = in_a(-s[kLr])};
  A* p = args.master.as<A>();
  A* m = args.exp_avg.as<A>();
  A* v = args.exp_avg_sq.as<A>();
  ForEachTile<A>(args.master, args.gradient, args.low_precision, [&](int64_t begin, int64_t n, const A* gradient) {
    if (args.decoupled) {
      UpdateTile<true>(n, p + begin, m + begin, v + begin, gradient, f);
    } else {
      UpdateTile<false>(n, p + begin, m + begin, v + begin, gradient, f);
    }
  });
}

}  // namespace

void AdamStep(const AdamStepArgs& args) {
  if (args.scalars.as<double>()[kSkip] != 0) return;
  if (args.master.dtype == DType::kF64) return Step<double>(args);
  Step<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
