// SPDX-License-Identifier: Apache-2.0
// Llama: RMSNorm, rotary positions, grouped attention heads, SwiGLU.
// H. Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models", 2023.
#pragma once

#include <optional>

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/models/lm_head.h"
#include "nn/norm.h"

namespace tessera::nn {

struct LlamaConfig {  // names as in HuggingFace's config.json
  int64_t vocab_size = 128256;
  int64_t hidden_size = 2048;
  int64_t intermediate_size = 8192;
  int64_t num_hidden_layers = 16;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 8;
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 131072;
  double rms_norm_eps = 1e-5;
  double rope_theta = 500000;
  std::optional<RopeScaling> rope_scaling;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  bool recompute = false;  // checkpoint each layer

  static LlamaConfig Llama3_2_1B();
  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
  void Validate() const;
};

class LlamaLayer final : public Layer<LlamaLayer> {
 public:
  LlamaLayer(Module* parent, std::string name, const LlamaConfig& config);
  Tensor Forward(const Tensor& x, const RopeTable& rope);  // (B, T, C) -> (B, T, C)

  RmsNorm input_layernorm;
  GroupedAttention self_attn;
  RmsNorm post_attention_layernorm;
  SwiGluMlp mlp;
};

class Llama final : public Layer<Llama> {
 public:
  explicit Llama(const LlamaConfig& config, Place place = {.parent = nullptr, .name = "llama"});

  Tensor Forward(const Tensor& ids);                       // logits (B, T, V)
  Loss Forward(const Tensor& ids, const Tensor& targets);  // both (B, T)
  const LlamaConfig& config() const { return config_; }

 private:
  Tensor Hidden(const Tensor& ids);
  LlamaConfig config_;
  RopeTable rope_;

 public:
  Embedding embed_tokens;
  ModuleList<LlamaLayer> layers;
  RmsNorm norm;
  std::optional<LmHead> lm_head;
};

}  // namespace tessera::nn
