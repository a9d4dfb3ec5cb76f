// SPDX-License-Identifier: Apache-2.0
// How stream.cc makes the CUDA kind of a Stream. Without CUDA nothing here is defined, nor called.
#pragma once

#include <memory>

#include "tensor/stream_queue.h"

namespace tessera::internal {

std::unique_ptr<StreamQueue> NewCudaQueue(Device device);
std::unique_ptr<StreamQueue> DefaultCudaQueue(Device device);  // of the device's own stream, which is always there

}  // namespace tessera::internal
