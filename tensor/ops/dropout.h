// SPDX-License-Identifier: Apache-2.0
// y[i] = x[i] / (1 - p) with probability 1 - p, else 0; and, with the same key, the gradient of that.
//
// x, y: one floating dtype, one shape, any layouts (y without overlap); y may be x. Element i, counted row-major over the
// shape whatever the layout, is dropped when key.Uniform(i) < p. So nothing but the key is kept for backward, and any
// part of the mask can be drawn anywhere. p = 0 copies, p = 1 gives zeros, also where x is not finite.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/rng.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct DropoutArgs {
  ConstView x;
  View y;
  double p = 0;
  RngKey key;
};

void Dropout(const DropoutArgs& args);

TESSERA_CPU_KERNEL(Dropout, DropoutArgs)

}  // namespace tessera::ops
