// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/flat_step_cpu.h"
#include "tensor/ops/lion_step.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
struct Factors {
  A gradient, beta1, one_minus_beta1, beta2, one_minus_beta2, kept, lr;
};

template <class A>
void UpdateTile(int64_t n, A* __restrict p, A* __restrict m, const A* __restrict gradient, const Factors<A> f) {
  for (int64_t i = 0; i < n; ++i) {
    const A g = gradient[i] * f.gradient;
    const A c = Fma(f.beta1, m[i], f.one_minus_beta1 * g);
    const A down = c > 0 ? -f.lr : (c < 0 ? f.lr : c);  // a zero or NaN goes through as it is
    p[i] = Fma(p[i], f.kept, down);
    m[i] = Fma(f.beta2, m[i], f.one_minus_beta2 * g);
  }
}

template <class A>
void Step(const LionStepArgs& args) {
  const double* s = args.scalars.as<double>();
  const auto in_a = [](double x) { return static_cast<A>(x); };
  const Factors<A> f{.gradient = in_a(s[kGradientFactor]),
                     .beta1 = in_a(s[kMomentum]),
                     .one_minus_beta1 = in_a(1.0 - s[kMomentum]),
                     .beta2 = in_a(s[kBeta2]),
                     .one_minus_beta2 = in_a(1.0 - s[kBeta2]),
                     .kept = in_a(Fma(-s[kLr], args.weight_decay, 1.0)),
                     .lr = in_a(s[kLr])};
  A* p = args.master.as<A>();
  A* m = args.exp_avg.as<A>();
  ForEachTile<A>(args.master, args.gradient, args.low_precision, [&](int64_t begin, int64_t n, const A* gradient) {
    UpdateTile(n, p + begin, m + begin, gradient, f);
  });
}

}  // namespace

void LionStep(const LionStepArgs& args) {
  if (args.scalars.as<double>()[kSkip] != 0) return;
  if (args.master.dtype == DType::kF64) return Step<double>(args);
  Step<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
