// SPDX-License-Identifier: Apache-2.0
#include "nn/embedding.h"

#include "autograd/embedding.h"

namespace tessera::nn {

Embedding::Embedding(Module* parent, std::string name, int64_t num_embeddings, int64_t embedding_dim, const Init& init)
    : Layer(parent, std::move(name)), weight(this, "weight", {num_embeddings, embedding_dim}, init) {}

Tensor Embedding::Forward(const Tensor& ids) { return tessera::Embedding(weight, ids); }

}  // namespace tessera::nn
