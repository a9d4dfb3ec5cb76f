// SPDX-License-Identifier: Apache-2.0
#include "nn/norm.h"

namespace tessera::nn {

LayerNorm::LayerNorm(Module* parent, std::string name, int64_t features, double eps, bool with_bias)
    : Layer(parent, std::move(name)), weight(this, "weight", {features}, Init::Ones()), eps_(eps) {
  if (with_bias) bias.emplace(this, "bias", Shape{features}, Init::Zeros());
}

Input LayerNorm::BiasInput() { return bias.has_value() ? Input(bias->Ref()) : Input(); }

Tensor LayerNorm::Forward(const Tensor& x) { return tessera::LayerNorm(x, weight, BiasInput(), eps_); }

SumAndNorm LayerNorm::Forward(const Tensor& x, const Tensor& residual) {
  return AddLayerNorm(x, residual, weight, BiasInput(), eps_);
}

RmsNorm::RmsNorm(Module* parent, std::string name, int64_t features, double eps)
    : Layer(parent, std::move(name)), weight(this, "weight", {features}, Init::Ones()), eps_(eps) {}

Tensor RmsNorm::Forward(const Tensor& x) { return tessera::RmsNorm(x, weight, eps_); }

SumAndNorm RmsNorm::Forward(const Tensor& x, const Tensor& residual) { return AddRmsNorm(x, residual, weight, eps_); }

}  // namespace tessera::nn
