// SPDX-License-Identifier: Apache-2.0
// Bytes of model states per rank, by the closed formulas of the ZeRO paper (arXiv 1910.02054): what parameters, gradients
// and optimizer states take, without padding, buffers or activations.
//
//   ModelStates m = ModelStateBytes(1e9, /*stage=*/2, /*ranks=*/4, kMixedPrecision);
//   m.parameters, m.gradients, m.states, m.total()
#pragma once

namespace tessera::zero {

struct BytesPerParameter {
  double weights, gradients, states;
};

// 16 bits with an fp32 master and Adam's two moments, gradients in 16 bits (one micro-step) or in fp32 (several).
inline constexpr BytesPerParameter kMixedPrecision{2, 2, 12};
inline constexpr BytesPerParameter kMixedPrecisionFp32Gradients{2, 4, 12};
// fp32 throughout: the weight is its own master.
inline constexpr BytesPerParameter kSinglePrecision{4, 4, 8};

struct ModelStates {
  double parameters = 0, gradients = 0, states = 0;
  double total() const { return parameters + gradients + states; }
};

// Stage 1 divides states by the ranks, stage 2 gradients too, stage 3 parameters too.
inline ModelStates ModelStateBytes(double parameters, int stage, int ranks, const BytesPerParameter& bytes) {
  const double n = ranks;
  return {.parameters = parameters * bytes.weights / (stage >= 3 ? n : 1),
          .gradients = parameters * bytes.gradients / (stage >= 2 ? n : 1),
          .states = parameters * bytes.states / (stage >= 1 ? n : 1)};
}

}  // namespace tessera::zero
