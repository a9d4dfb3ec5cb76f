// SPDX-License-Identifier: Apache-2.0
// GPT-2: learned positions, pre-norm blocks, GELU, tied head.
// A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
//
//   nn::Gpt model(nn::GptConfig::Gpt2_124M());
//   Loss loss = model(ids, targets);     // ids, targets (B, T)
//   Tensor logits = model(ids);          // (B, T, V)
#pragma once

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/models/lm_head.h"
#include "nn/norm.h"

namespace tessera::nn {

struct GptConfig {  // names as in HuggingFace's config.json
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 0;  // 0: 4 * n_embd
  double layer_norm_epsilon = 1e-5;
  double dropout = 0.0;             // embd_pdrop and resid_pdrop
  double initializer_range = 0.02;  // residual projections: divided by sqrt(2 * n_layer)
  bool recompute = false;           // checkpoint each block: activations of one block instead of all

  static GptConfig Tiny();  // byte-level, 0.8 M parameters: the one that trains in two minutes on two cores
  static GptConfig Gpt2_124M() { return {}; }
  void Validate() const;  // throws with the field, the value and what is legal
};

class GptBlock final : public Layer<GptBlock> {
 public:
  GptBlock(Module* parent, std::string name, const GptConfig& config);
  Tensor Forward(const Tensor& x);  // (B, T, C) -> (B, T, C)

  LayerNorm ln_1;
  PackedAttention attn;
  LayerNorm ln_2;
  GeluMlp mlp;
};

class Gpt final : public Layer<Gpt> {
 public:
  explicit Gpt(const GptConfig& config, Place place = {.parent = nullptr, .name = "gpt"});

  Tensor Forward(const Tensor& ids);                       // logits (B, T, V)
  Loss Forward(const Tensor& ids, const Tensor& targets);  // both (B, T)
  const GptConfig& config() const { return config_; }

 private:
  Tensor Hidden(const Tensor& ids);
  GptConfig config_;

 public:
  Embedding wte, wpe;
  Dropout drop;
  ModuleList<GptBlock> blocks;
  LayerNorm ln_f;
  LmHead lm_head;
};

}  // namespace tessera::nn
