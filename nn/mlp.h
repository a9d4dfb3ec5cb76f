// SPDX-License-Identifier: Apache-2.0
// The two feed-forward blocks: GPT's with GELU, Llama's with SwiGLU.
#pragma once

#include "nn/dropout.h"
#include "nn/linear.h"

namespace tessera::nn {

class GeluMlp final : public Layer<GeluMlp> {
 public:
  struct Options {
    int64_t dim = 0, hidden = 0;
    double dropout = 0;
    Init weight_init = Init::Normal(0.02), proj_init = Init::Normal(0.02);
  };
  GeluMlp(Module* parent, std::string name, const Options& options);
  Tensor Forward(const Tensor& x);  // (..., dim) -> (..., dim)

  Linear c_fc, c_proj;
  Dropout dropout;
};

class SwiGluMlp final : public Layer<SwiGluMlp> {
 public:
  struct Options {
    int64_t dim = 0, hidden = 0;
    Init weight_init = Init::Normal(0.02);
  };
  SwiGluMlp(Module* parent, std::string name, const Options& options);
  Tensor Forward(const Tensor& x);  // (..., dim) -> (..., dim)

  Linear gate_proj, up_proj, down_proj;
};

}  // namespace tessera::nn
