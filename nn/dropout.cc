// SPDX-License-Identifier: Apache-2.0
#include "nn/dropout.h"

#include "autograd/dropout.h"
#include "tensor/context.h"

namespace tessera::nn {

Dropout::Dropout(Module* parent, std::string name, double p) : Layer(parent, std::move(name)), p_(p) {
  if (!(p >= 0 && p <= 1)) throw Error(Str(scope_path(), ": dropout: p is ", p, ", expected a number in [0, 1]"));
}

Tensor Dropout::Forward(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  return tessera::Dropout(x, p_, CurrentContext().NextRandomKey(path()));
}

}  // namespace tessera::nn
