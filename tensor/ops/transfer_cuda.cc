// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/runtime.cuh"
#include "tensor/ops/transfer.h"

namespace tessera::ops::cuda {

void Transfer(const TransferArgs& args) {
  const int64_t item = ItemSize(args.x.dtype), bytes = args.x.numel() * item;
  if (bytes == 0) return;
  const bool with_host = args.x.device.is_cpu() || args.out.device.is_cpu();
  const internal::LaunchScope scope(args.x.device.is_cuda() ? args.x.device : args.out.device);
  TESSERA_CUDA_CALL(cudaMemcpyAsync(static_cast<char*>(args.out.data) + args.out.layout.offset() * item,
                                    static_cast<const char*>(args.x.data) + args.x.layout.offset() * item,
                                    static_cast<size_t>(bytes), cudaMemcpyDefault, scope.stream()));
  // The driver "may" have copied pageable memory by now.
  if (with_host) TESSERA_CUDA_CALL(cudaStreamSynchronize(scope.stream()));
}

}  // namespace tessera::ops::cuda
