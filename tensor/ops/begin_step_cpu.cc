// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/begin_step.h"
#include "tensor/ops/flat_step_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// 1 - x^n by squaring: plain products in one order, unlike pow, give the same bits on every device.
double OneMinusPower(double x, int64_t n) {
  double power = 1;
  for (; n > 0; n >>= 1) {
    if ((n & 1) != 0) power *= x;
    x *= x;
  }
  return Fma(-1.0, power, 1.0);
}

double SumInOrder(const ConstView& by_rank) {
  const double* values = by_rank.as<double>();
  double sum = 0;
  for (int64_t i = 0; i < by_rank.size(0); ++i) sum += values[i * by_rank.stride(0)];
  return sum;
}

}  // namespace

void BeginStep(const BeginStepArgs& args) {
  double* s = args.scalars.as<double>();
  double scale = s[kLossScale];
  bool skip = false;
  if (args.loss_weight.present()) {
    const double weight = SumInOrder(args.loss_weight);
    skip = weight == 0;
    if (!skip) scale *= weight / args.expected_weight;
  }
  double norm = __builtin_nan(""), clip_factor = 1, gradient_factor = 1 / scale;
  if (args.sum_squares.present()) {
    const double sum = SumInOrder(args.sum_squares);
    const bool finite = sum - sum == 0;
    norm = finite ? std::sqrt(sum) / scale : -1;
    skip |= !finite && args.skip_non_finite;
    if (finite && args.max_norm > 0) {
      const double kappa = (norm + 1e-6) / args.max_norm;
      if (kappa > 1) {
        clip_factor = 1 / kappa;
        gradient_factor = 1 / (kappa * scale);
      }
    }
  }
  s[kGradNormBeforeClip] = norm;
  s[kClipFactor] = clip_factor;
  s[kGradientFactor] = gradient_factor;
  s[kSkip] = skip ? 1 : 0;
  if (skip) return;

  const int64_t update = static_cast<int64_t>(s[kAppliedSteps]) + 1;
  s[kAppliedSteps] = static_cast<double>(update);
  if (args.schedule.present()) {
    const int64_t last = args.schedule.size(0) - 1;
    const int64_t wanted = update - args.first_update;
    const double* row = args.schedule.as<double>() + 3 * (wanted < 0 ? 0 : (wanted > last ? last : wanted));
    if (row[0] == row[0]) s[kLr] = row[0];
    if (row[1] == row[1]) s[kMomentum] = row[1];
    if (row[2] == row[2]) s[kBeta2] = row[2];
  }
  s[kMomentumCorrection] = 1 / OneMinusPower(s[kMomentum], update);
  s[kSquareCorrection] = 1 / std::sqrt(OneMinusPower(s[kBeta2], update));
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
