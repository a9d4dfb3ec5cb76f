// SPDX-License-Identifier: Apache-2.0
// out[i] = x[i] * factor * factor_tensor + shift, or out[i] += that with `accumulate`.
//
// x, out: floating dtypes, which may differ, one shape, any layouts (out without overlap); out may be x, which scales in
// place. factor_tensor: one element, f32 or f64, optional; it stays on the device, so that a scale made there (a loss
// scale, a clip factor) costs no round trip. The product of the two factors is taken in f64, the rest in f32 (f64 when x
// or out is f64).
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct ScaleArgs {
  ConstView x;
  View out;
  double factor = 1;
  ConstView factor_tensor = {};  // optional
  double shift = 0;
  bool accumulate = false;
};

void Scale(const ScaleArgs& args);

TESSERA_CPU_KERNEL(Scale, ScaleArgs)

}  // namespace tessera::ops
