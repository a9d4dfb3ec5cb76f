// SPDX-License-Identifier: Apache-2.0
#include "nn/models/lm_head.h"

#include "autograd/linear.h"

namespace tessera::nn {

LmHead::LmHead(Module* parent, std::string name, int64_t dim, int64_t vocab_size, const Init& init)
    : Layer(parent, std::move(name)) {
  weight_.emplace(this, "weight", Shape{vocab_size, dim}, init);
  used_ = &*weight_;
}

LmHead::LmHead(Module* parent, std::string name, Parameter& tied_weight)
    : Layer(parent, std::move(name)), used_(&tied_weight) {
  Uses(tied_weight);
}

Tensor LmHead::Forward(const Tensor& x) { return Linear(x, *used_, Input()); }

Loss LmHead::Forward(const Tensor& x, const Tensor& targets) { return LinearCrossEntropy(x, *used_, targets); }

}  // namespace tessera::nn
