// SPDX-License-Identifier: Apache-2.0
// out[i] = value.
//
// out: any dtype, any layout without overlap. The value is rounded to the dtype (integers: truncated).
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct FillArgs {
  View out;
  double value = 0;
};

void Fill(const FillArgs& args);

TESSERA_CPU_KERNEL(Fill, FillArgs)
TESSERA_CUDA_KERNEL(Fill, FillArgs)

}  // namespace tessera::ops
