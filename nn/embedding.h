// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index.
#pragma once

#include "nn/module.h"

namespace tessera::nn {

class Embedding final : public Layer<Embedding> {
 public:
  Embedding(Module* parent, std::string name, int64_t num_embeddings, int64_t embedding_dim,
            const Init& init = Init::Normal(1.0));
  Tensor Forward(const Tensor& ids);  // i32 or i64 (...) -> (..., embedding_dim)

  Parameter weight;  // (num_embeddings, embedding_dim)
};

}  // namespace tessera::nn
