// SPDX-License-Identifier: Apache-2.0
// Differentiable attention in blocks: the scores (B, H, T, S) never exist. Contract: tensor/ops/attention.h.
//
//   Tensor y = Attention(q, k, v, {.causal = true});                        // (B, T, Hq, D)
//   Tensor y = AttentionPacked(c_attn(x), heads, heads, {.causal = true});  // (B, T, Hq * D), GPT's packed projection
#pragma once

#include <optional>

#include "autograd/param.h"

namespace tessera {

struct AttentionOptions {
  bool causal = false;                         // query i sees the keys up to i + S - T
  std::optional<double> scale = std::nullopt;  // of the scores; 1 / sqrt(D) by default
};

// q (B, T, Hq, D), k and v (B, S, Hkv, D), Hq a multiple of Hkv; the last dimension dense, other dims with any strides.
Tensor Attention(const Input& q, const Input& k, const Input& v, const AttentionOptions& options = {});

// qkv (B, T, (Hq + 2 Hkv) * D): the query heads, the key heads, the value heads. Nothing is cut apart or put together:
// the parts are views, in backward too.
Tensor AttentionPacked(const Input& qkv, int64_t q_heads, int64_t kv_heads, const AttentionOptions& options = {});

}  // namespace tessera
