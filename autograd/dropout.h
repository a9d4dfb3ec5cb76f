// SPDX-License-Identifier: Apache-2.0
// Dropout by counter-based random numbers: the mask is a function of the key, and backward draws it again.
//
//   Tensor y = Dropout(x, 0.1, CurrentContext().NextRandomKey(path));
#pragma once

#include "autograd/param.h"
#include "tensor/rng.h"

namespace tessera {

// x with each element dropped with probability p, the others divided by 1 - p. p = 0 gives x itself.
Tensor Dropout(const Input& x, double p, RngKey key);

}  // namespace tessera
