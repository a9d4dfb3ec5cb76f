// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of x to out, where one of them is on a GPU and the other on the CPU or on the same GPU.
//
// x, out: one shape, one dtype, both contiguous. The copy is work of the GPU's current stream. When it returns, x on the CPU
// may change and out on the CPU is there; a copy between two places of one GPU is only queued. Between two GPUs it is
// refused: that is a matter for a communicator.
#pragma once

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct TransferArgs {
  ConstView x;
  View out;
};

void Transfer(const TransferArgs& args);

TESSERA_CUDA_KERNEL(Transfer, TransferArgs)

}  // namespace tessera::ops
