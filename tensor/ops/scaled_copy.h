// SPDX-License-Identifier: Apache-2.0
// out[i] = factor * x[i], or out[i] += factor * x[i] with `accumulate`, where the factor lies on the device.
//
// x, out: the same shape, any layouts (out without overlap), any floating dtypes; they share no memory unless they are
// the very same view. factor: rank 0, f32 or f64. Computed in f32, in f64 if x or out is f64, and rounded once.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct ScaledCopyArgs {
  ConstView x, factor;
  View out;
  bool accumulate = false;
};

void ScaledCopy(const ScaledCopyArgs& args);

TESSERA_CPU_KERNEL(ScaledCopy, ScaledCopyArgs)

}  // namespace tessera::ops
