// SPDX-License-Identifier: Apache-2.0
// Normalisation over the last dimension. The two-argument forms add a residual first, in the same pass:
//   auto [sum, normed] = ln(branch, residual);   // sum = branch + residual, normed = ln(sum)
#pragma once

#include <optional>

#include "autograd/norm.h"
#include "nn/module.h"

namespace tessera::nn {

class LayerNorm final : public Layer<LayerNorm> {
 public:
  LayerNorm(Module* parent, std::string name, int64_t features, double eps = 1e-5, bool with_bias = true);
  Tensor Forward(const Tensor& x);
  SumAndNorm Forward(const Tensor& x, const Tensor& residual);

  Parameter weight;               // (features)
  std::optional<Parameter> bias;  // (features)

 private:
  Input BiasInput();
  double eps_;
};

class RmsNorm final : public Layer<RmsNorm> {
 public:
  RmsNorm(Module* parent, std::string name, int64_t features, double eps = 1e-5);
  Tensor Forward(const Tensor& x);
  SumAndNorm Forward(const Tensor& x, const Tensor& residual);

  Parameter weight;  // (features)

 private:
  double eps_;
};

}  // namespace tessera::nn
