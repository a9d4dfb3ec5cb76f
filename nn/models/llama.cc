// SPDX-License-Identifier: Apache-2.0
#include "nn/models/llama.h"

#include "autograd/checkpoint.h"
#include "autograd/elementwise.h"

namespace tessera::nn {
namespace {

const LlamaConfig& Checked(const LlamaConfig& config) {
  config.Validate();
  return config;
}

}  // namespace

LlamaConfig LlamaConfig::Llama3_2_1B() {
  LlamaConfig config;
  config.rope_scaling = RopeScaling{.factor = 32};
  return config;
}

void LlamaConfig::Validate() const {
  const auto positive = [](const char* field, int64_t value) {
    if (value < 1) throw Error(Str("llama config: ", field, " is ", value, ", expected at least 1"));
  };
  positive("vocab_size", vocab_size);
  positive("hidden_size", hidden_size);
  positive("intermediate_size", intermediate_size);
  positive("num_hidden_layers", num_hidden_layers);
  positive("max_position_embeddings", max_position_embeddings);
  CheckHeads("llama config", num_attention_heads, num_key_value_heads);
  if (head_dim < 0) throw Error(Str("llama config: head_dim is ", head_dim, ", expected 0 or more"));
  if (head_dim == 0 && hidden_size % num_attention_heads != 0) {
    throw Error(Str("llama config: hidden_size ", hidden_size, " is not divisible by num_attention_heads ",
                    num_attention_heads, "; set head_dim"));
  }
  if (HeadDim() % 2 != 0) throw Error(Str("llama config: head_dim ", HeadDim(), " must be even for rotary positions"));
}

LlamaLayer::LlamaLayer(Module* parent, std::string name, const LlamaConfig& config)
    : Layer(parent, std::move(name)),
      input_layernorm(this, "input_layernorm", config.hidden_size, config.rms_norm_eps),
      self_attn(this, "self_attn",
                {.dim = config.hidden_size,
                 .heads = config.num_attention_heads,
                 .kv_heads = config.num_key_value_heads,
                 .head_dim = config.HeadDim(),
                 .weight_init = Init::Normal(config.initializer_range)}),
      post_attention_layernorm(this, "post_attention_layernorm", config.hidden_size, config.rms_norm_eps),
      mlp(this, "mlp",
          {.dim = config.hidden_size,
           .hidden = config.intermediate_size,
           .weight_init = Init::Normal(config.initializer_range)}) {}

Tensor LlamaLayer::Forward(const Tensor& x, const RopeTable& rope) {
  const auto [sum, normed] = post_attention_layernorm(self_attn(input_layernorm(x), rope), x);
  return Add(sum, mlp(normed));
}

Llama::Llama(const LlamaConfig& config, Place place)
    : Layer(std::move(place)),
      config_(Checked(config)),
      rope_({.head_dim = config.HeadDim(),
             .max_positions = config.max_position_embeddings,
             .base = config.rope_theta,
             .llama3 = config.rope_scaling}),
      embed_tokens(this, "embed_tokens", config.vocab_size, config.hidden_size, Init::Normal(config.initializer_range)),
      layers(this, "layers", config.num_hidden_layers, config),
      norm(this, "norm", config.hidden_size, config.rms_norm_eps) {
  if (config.tie_word_embeddings) {
    lm_head.emplace(this, "lm_head", embed_tokens.weight);
  } else {
    lm_head.emplace(this, "lm_head", config.hidden_size, config.vocab_size, Init::Normal(config.initializer_range));
  }
  for (Parameter* parameter : parameters()) {
    if (parameter->shape().rank() < 2) parameter->SetNoDecay();
  }
}

Tensor Llama::Hidden(const Tensor& ids) {
  if (ids.rank() != 2) throw Error(Str("llama: ids must have shape (batch, tokens), got ", ids.shape()));
  if (ids.size(1) > config_.max_position_embeddings) {
    throw Error(
        Str("llama: ", ids.size(1), " tokens are more than max_position_embeddings ", config_.max_position_embeddings));
  }
  Tensor x = embed_tokens(ids);  // (B, T, C)
  for (LlamaLayer& layer : layers) {
    x = config_.recompute ? Checkpoint([this, &layer](const Tensor& in) { return layer(in, rope_); }, x)
                          : layer(x, rope_);
  }
  return norm(x);
}

Tensor Llama::Forward(const Tensor& ids) { return (*lm_head)(Hidden(ids)); }

Loss Llama::Forward(const Tensor& ids, const Tensor& targets) { return (*lm_head)(Hidden(ids), targets); }

}  // namespace tessera::nn
