// SPDX-License-Identifier: Apache-2.0
// The head of a language model: hidden states to logits, or straight to the loss without ever forming all logits. Its
// weight is its own, or the embedding's (tied).
#pragma once

#include <optional>

#include "autograd/loss.h"
#include "nn/module.h"

namespace tessera::nn {

class LmHead final : public Layer<LmHead> {
 public:
  LmHead(Module* parent, std::string name, int64_t dim, int64_t vocab_size, const Init& init);  // a weight of its own
  LmHead(Module* parent, std::string name, Parameter& tied_weight);

  Tensor Forward(const Tensor& x);                       // (B, T, C) -> (B, T, V)
  Loss Forward(const Tensor& x, const Tensor& targets);  // targets (B, T); -100 is ignored

 private:
  std::optional<Parameter> weight_;  // (V, C)
  Parameter* used_;
};

}  // namespace tessera::nn
