// SPDX-License-Identifier: Apache-2.0
#include "nn/attention.h"

#include "autograd/attention.h"
#include "autograd/rope.h"
#include "autograd/views.h"

namespace tessera::nn {

void CheckHeads(const std::string& where, int64_t heads, int64_t kv_heads) {
  if (heads > 0 && kv_heads > 0 && heads % kv_heads == 0) return;
  throw Error(Str(where, ": ", heads, " heads and ", kv_heads,
                  " key-value heads: heads must be a positive multiple of "
                  "key-value heads"));
}

PackedAttention::PackedAttention(Module* parent, std::string name, const Options& options)
    : Layer(parent, std::move(name)),
      heads_(options.heads),
      c_attn(this, "c_attn", options.dim, 3 * options.dim,
             {.weight_init = options.weight_init, .bias_init = Init::Zeros()}),
      c_proj(this, "c_proj", options.dim, options.dim, {.weight_init = options.proj_init, .bias_init = Init::Zeros()}),
      resid_dropout(this, "resid_dropout", options.dropout) {
  CheckHeads(scope_path(), options.heads, options.heads);
  if (options.dim % options.heads != 0) {
    throw Error(Str(scope_path(), ": width ", options.dim, " is not divisible by ", options.heads, " heads"));
  }
}

Tensor PackedAttention::Forward(const Tensor& x) {
  const Tensor y = AttentionPacked(c_attn(x), heads_, heads_, {.causal = true});
  return resid_dropout(c_proj(y));
}

GroupedAttention::GroupedAttention(Module* parent, std::string name, const Options& options)
    : Layer(parent, std::move(name)),
      options_(options),
      q_proj(this, "q_proj", options.dim, options.heads * options.head_dim,
             {.bias = false, .weight_init = options.weight_init}),
      k_proj(this, "k_proj", options.dim, options.kv_heads * options.head_dim,
             {.bias = false, .weight_init = options.weight_init}),
      v_proj(this, "v_proj", options.dim, options.kv_heads * options.head_dim,
             {.bias = false, .weight_init = options.weight_init}),
      o_proj(this, "o_proj", options.heads * options.head_dim, options.dim,
             {.bias = false, .weight_init = options.weight_init}) {
  CheckHeads(scope_path(), options.heads, options.kv_heads);
}

Tensor GroupedAttention::Forward(const Tensor& x, const RopeTable& rope) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const auto heads_of = [&](const Tensor& projected, int64_t heads) {
    return Reshape(projected, {batch, tokens, heads, options_.head_dim});
  };
  const Tensor q = Rope(heads_of(q_proj(x), options_.heads), rope);
  const Tensor k = Rope(heads_of(k_proj(x), options_.kv_heads), rope);
  const Tensor v = heads_of(v_proj(x), options_.kv_heads);
  const Tensor y = Attention(q, k, v, {.causal = true});  // (B, T, H, D)
  return o_proj(Reshape(y, {batch, tokens, options_.heads * options_.head_dim}));
}

}  // namespace tessera::nn
