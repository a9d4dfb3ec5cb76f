// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include "autograd/linear.h"

namespace tessera::nn {

Linear::Linear(Module* parent, std::string name, int64_t in_features, int64_t out_features,
               const LinearOptions& options)
    : Layer(parent, std::move(name)),
      gelu_(options.gelu),
      weight(this, "weight", {out_features, in_features},
             options.weight_init.value_or(Init::KaimingUniform(in_features))) {
  if (options.bias) {
    bias.emplace(this, "bias", Shape{out_features}, options.bias_init.value_or(Init::KaimingUniform(in_features)));
  }
}

Tensor Linear::Forward(const Tensor& x) {
  const Input b = bias.has_value() ? Input(bias->Ref()) : Input();
  return gelu_ ? LinearGelu(x, weight, b) : tessera::Linear(x, weight, b);
}

}  // namespace tessera::nn
