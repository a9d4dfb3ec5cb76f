// SPDX-License-Identifier: Apache-2.0
#include "nn/models/gpt.h"

#include <cmath>

#include "autograd/checkpoint.h"
#include "autograd/elementwise.h"

namespace tessera::nn {
namespace {

// Validates before any member reads the fields.
const GptConfig& Checked(const GptConfig& config) {
  config.Validate();
  return config;
}

Init ProjectionInit(const GptConfig& config) {
  return Init::Normal(config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layer)));
}

}  // namespace

GptConfig GptConfig::Tiny() {
  // So narrow a model learns sooner from larger first weights than GPT-2's 0.02.
  return {.vocab_size = 256, .n_positions = 64, .n_embd = 128, .n_layer = 4, .n_head = 4, .initializer_range = 0.035};
}

void GptConfig::Validate() const {
  const auto positive = [](const char* field, int64_t value) {
    if (value < 1) throw Error(Str("gpt config: ", field, " is ", value, ", expected at least 1"));
  };
  positive("vocab_size", vocab_size);
  positive("n_positions", n_positions);
  positive("n_embd", n_embd);
  positive("n_layer", n_layer);
  positive("n_head", n_head);
  if (n_embd % n_head != 0) {
    throw Error(Str("gpt config: n_embd ", n_embd, " is not divisible by n_head ", n_head));
  }
  if (n_inner < 0) throw Error(Str("gpt config: n_inner is ", n_inner, ", expected 0 (4 * n_embd) or more"));
  if (!(dropout >= 0 && dropout < 1)) throw Error(Str("gpt config: dropout is ", dropout, ", expected [0, 1)"));
}

GptBlock::GptBlock(Module* parent, std::string name, const GptConfig& config)
    : Layer(parent, std::move(name)),
      ln_1(this, "ln_1", config.n_embd, config.layer_norm_epsilon),
      attn(this, "attn",
           {.dim = config.n_embd,
            .heads = config.n_head,
            .dropout = config.dropout,
            .weight_init = Init::Normal(config.initializer_range),
            .proj_init = ProjectionInit(config)}),
      ln_2(this, "ln_2", config.n_embd, config.layer_norm_epsilon),
      mlp(this, "mlp",
          {.dim = config.n_embd,
           .hidden = config.n_inner > 0 ? config.n_inner : 4 * config.n_embd,
           .dropout = config.dropout,
           .weight_init = Init::Normal(config.initializer_range),
           .proj_init = ProjectionInit(config)}) {}

Tensor GptBlock::Forward(const Tensor& x) {
  const auto [sum, normed] = ln_2(attn(ln_1(x)), x);
  return Add(sum, mlp(normed));
}

Gpt::Gpt(const GptConfig& config, Place place)
    : Layer(std::move(place)),
      config_(Checked(config)),
      wte(this, "wte", config.vocab_size, config.n_embd, Init::Normal(config.initializer_range)),
      wpe(this, "wpe", config.n_positions, config.n_embd, Init::Normal(config.initializer_range)),
      drop(this, "drop", config.dropout),
      blocks(this, "blocks", config.n_layer, config),
      ln_f(this, "ln_f", config.n_embd, config.layer_norm_epsilon),
      lm_head(this, "lm_head", wte.weight) {
  Uses(wpe.weight);  // the sum of token and position embeddings happens here
  for (Parameter* parameter : parameters()) {
    if (parameter->shape().rank() < 2) parameter->SetNoDecay();
  }
}

Tensor Gpt::Hidden(const Tensor& ids) {
  if (ids.rank() != 2) throw Error(Str("gpt: ids must have shape (batch, tokens), got ", ids.shape()));
  const int64_t tokens = ids.size(1);
  if (tokens > config_.n_positions) {
    throw Error(Str("gpt: ", tokens, " tokens are more than the ", config_.n_positions, " positions of the model"));
  }
  Tensor x = drop(Add(wte(ids), wpe.weight.Narrow(0, 0, tokens)));  // (B, T, C)
  for (GptBlock& block : blocks) {
    x = config_.recompute ? Checkpoint([&block](const Tensor& in) { return block(in); }, x) : block(x);
  }
  return ln_f(x);
}

Tensor Gpt::Forward(const Tensor& ids) { return lm_head(Hidden(ids)); }

Loss Gpt::Forward(const Tensor& ids, const Tensor& targets) { return lm_head(Hidden(ids), targets); }

}  // namespace tessera::nn
