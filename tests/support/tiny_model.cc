// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_model.h"

#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "tests/support/golden_inputs.h"

namespace tessera::testing {

TinyModel MakeTinyModel(const std::string& name, bool recompute, double dropout) {
  if (name == "gpt") {
    auto gpt = std::make_unique<nn::Gpt>(nn::GptConfig{.vocab_size = kGoldenVocab,
                                                       .n_positions = kGoldenTokens,
                                                       .n_embd = 32,
                                                       .n_layer = 2,
                                                       .n_head = 4,
                                                       .dropout = dropout,
                                                       .recompute = recompute});
    nn::Gpt* model = gpt.get();
    return {std::move(gpt), [model](const Tensor& x, const Tensor& y) { return (*model)(x, y); }};
  }
  nn::LlamaConfig config{.vocab_size = kGoldenVocab,
                         .hidden_size = 32,
                         .intermediate_size = 88,
                         .num_hidden_layers = 2,
                         .num_attention_heads = 4,
                         .num_key_value_heads = 2,
                         .head_dim = 8,
                         .max_position_embeddings = kGoldenTokens,
                         .rms_norm_eps = 1e-5,
                         .rope_theta = 10000,
                         .tie_word_embeddings = false,
                         .recompute = recompute};
  auto llama = std::make_unique<nn::Llama>(config);
  nn::Llama* model = llama.get();
  return {std::move(llama), [model](const Tensor& x, const Tensor& y) { return (*model)(x, y); }};
}

}  // namespace tessera::testing
