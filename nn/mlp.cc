// SPDX-License-Identifier: Apache-2.0
#include "nn/mlp.h"

#include "autograd/swiglu.h"

namespace tessera::nn {

GeluMlp::GeluMlp(Module* parent, std::string name, const Options& options)
    : Layer(parent, std::move(name)),
      c_fc(this, "c_fc", options.dim, options.hidden,
           {.weight_init = options.weight_init, .bias_init = Init::Zeros(), .gelu = true}),
      c_proj(this, "c_proj", options.hidden, options.dim,
             {.weight_init = options.proj_init, .bias_init = Init::Zeros()}),
      dropout(this, "dropout", options.dropout) {}

Tensor GeluMlp::Forward(const Tensor& x) { return dropout(c_proj(c_fc(x))); }

SwiGluMlp::SwiGluMlp(Module* parent, std::string name, const Options& options)
    : Layer(parent, std::move(name)),
      gate_proj(this, "gate_proj", options.dim, options.hidden, {.bias = false, .weight_init = options.weight_init}),
      up_proj(this, "up_proj", options.dim, options.hidden, {.bias = false, .weight_init = options.weight_init}),
      down_proj(this, "down_proj", options.hidden, options.dim, {.bias = false, .weight_init = options.weight_init}) {}

Tensor SwiGluMlp::Forward(const Tensor& x) { return down_proj(SwiGlu(gate_proj(x), up_proj(x))); }

}  // namespace tessera::nn
