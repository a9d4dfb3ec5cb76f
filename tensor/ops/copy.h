// SPDX-License-Identifier: Apache-2.0
// out[i] = x[i], or out[i] += x[i] with `accumulate`, converting between dtypes.
//
// x, out: the same shape, any layouts (out without overlap), any dtypes; they must not share memory unless they are the
// very same view. Floating to floating rounds to nearest even (f64 to 16 bits by way of f32); floating to integer
// truncates, and what an integer cannot hold becomes no particular value. `accumulate` takes floating dtypes and adds in
// the wider of the two accumulation types.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct CopyArgs {
  ConstView x;
  View out;
  bool accumulate = false;
};

void Copy(const CopyArgs& args);

TESSERA_CPU_KERNEL(Copy, CopyArgs)
TESSERA_CUDA_KERNEL(Copy, CopyArgs)

}  // namespace tessera::ops
