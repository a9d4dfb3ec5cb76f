// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/flat_step_cpu.h"
#include "tensor/ops/sgd_step.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
struct Factors {
  A gradient, momentum, decay, minus_lr;
};

template <class A>
void PlainTile(int64_t n, A* __restrict p, const A* __restrict gradient, const Factors<A> f) {
  for (int64_t i = 0; i < n; ++i) {
    const A g = Fma(f.decay, p[i], gradient[i] * f.gradient);
    p[i] = Fma(f.minus_lr, g, p[i]);
  }
}

template <bool kNesterov, class A>
void MomentumTile(int64_t n, A* __restrict p, A* __restrict buffer, const A* __restrict gradient, const Factors<A> f) {
  for (int64_t i = 0; i < n; ++i) {
    const A g = Fma(f.decay, p[i], gradient[i] * f.gradient);
    const A b = Fma(f.momentum, buffer[i], g);
    buffer[i] = b;
    p[i] = Fma(f.minus_lr, kNesterov ? Fma(f.momentum, b, g) : b, p[i]);
  }
}

template <class A>
void Step(const SgdStepArgs& args) {
  const double* s = args.scalars.as<double>();
  const Factors<A> f{.gradient = static_cast<A>(s[kGradientFactor]),
                     .momentum = static_cast<A>(s[kMomentum]),
                     .decay = static_cast<A>(args.weight_decay),
                     .minus_lr = static_cast<A>(-s[kLr])};
  A* p = args.master.as<A>();
  A* buffer = args.momentum_buffer.present() ? args.momentum_buffer.as<A>() : nullptr;
  ForEachTile<A>(args.master, args.gradient, args.low_precision, [&](int64_t begin, int64_t n, const A* gradient) {
    if (buffer == nullptr) {
      PlainTile(n, p + begin, gradient, f);
    } else if (args.nesterov) {
      MomentumTile<true>(n, p + begin, buffer + begin, gradient, f);
    } else {
      MomentumTile<false>(n, p + begin, buffer + begin, gradient, f);
    }
  });
}

}  // namespace

void SgdStep(const SgdStepArgs& args) {
  if (args.scalars.as<double>()[kSkip] != 0) return;
  if (args.master.dtype == DType::kF64) return Step<double>(args);
  Step<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
