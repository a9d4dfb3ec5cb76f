// SPDX-License-Identifier: Apache-2.0
// Causal self-attention: the GPT form with one packed projection, and the Llama form with grouped heads and RoPE.
#pragma once

#include "nn/dropout.h"
#include "nn/linear.h"
#include "tensor/ops/rope_table.h"

namespace tessera::nn {

// GPT's: c_attn makes q, k and v in one product; all heads have their own keys.
class PackedAttention final : public Layer<PackedAttention> {
 public:
  struct Options {
    int64_t dim = 0, heads = 0;
    double dropout = 0;  // on the output
    Init weight_init = Init::Normal(0.02), proj_init = Init::Normal(0.02);
  };
  PackedAttention(Module* parent, std::string name, const Options& options);
  Tensor Forward(const Tensor& x);  // (B, T, C) -> (B, T, C)

 private:
  int64_t heads_;

 public:
  Linear c_attn, c_proj;
  Dropout resid_dropout;
};

// Llama's: `heads` queries share `kv_heads` keys and values; positions come in by rotation.
class GroupedAttention final : public Layer<GroupedAttention> {
 public:
  struct Options {
    int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
    Init weight_init = Init::Normal(0.02);
  };
  GroupedAttention(Module* parent, std::string name, const Options& options);
  Tensor Forward(const Tensor& x, const RopeTable& rope);  // (B, T, C) -> (B, T, C)

 private:
  Options options_;

 public:
  Linear q_proj, k_proj, v_proj, o_proj;
};

// heads a multiple of kv_heads, both positive; throws naming `where` otherwise.
void CheckHeads(const std::string& where, int64_t heads, int64_t kv_heads);

}  // namespace tessera::nn
