// SPDX-License-Identifier: Apache-2.0
// y = x W^T + b, with PyTorch's parameter names, shapes and default values.
#pragma once

#include <optional>

#include "nn/module.h"

namespace tessera::nn {

struct LinearOptions {
  bool bias = true;
  std::optional<Init> weight_init;  // default: Kaiming uniform, as PyTorch's
  std::optional<Init> bias_init;    // default: uniform within 1/sqrt(in_features)
  bool gelu = false;                // fuses GELU (tanh form) behind the product
};

class Linear final : public Layer<Linear> {
 public:
  Linear(Module* parent, std::string name, int64_t in_features, int64_t out_features,
         const LinearOptions& options = {});
  Tensor Forward(const Tensor& x);  // (..., in_features) -> (..., out_features)

 private:
  bool gelu_;

 public:
  Parameter weight;               // (out_features, in_features)
  std::optional<Parameter> bias;  // (out_features)
};

}  // namespace tessera::nn
