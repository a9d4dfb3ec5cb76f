// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/transfer.h"

#include "tensor/ops/check.h"
#include "tensor/ops/copy.h"

namespace tessera::ops {

void Transfer(const TransferArgs& args) {
  constexpr const char* kOp = "transfer";
  CheckSameShape(kOp, {"x", args.x}, {"out", args.out});
  CheckSameDType(kOp, {{"x", args.x}, {"out", args.out}});
  CheckContiguous(kOp, {"x", args.x});
  CheckContiguous(kOp, {"out", args.out});
  const Device from = args.x.device, to = args.out.device;
  if (from.is_meta() || to.is_meta()) {
    if (from == to) return;
    throw Error(Str(kOp, ": x is on ", from, ", out is on ", to, "; a meta tensor has no bytes"));
  }
  if (from.is_cpu() && to.is_cpu()) return Copy({.x = args.x, .out = args.out});
  if (from.is_cuda() && to.is_cuda() && from != to) {
    throw Error(Str(kOp, ": x is on ", from, ", out is on ", to, "; between GPUs a communicator moves data"));
  }
  const ConstView on_gpu = from.is_cuda() ? args.x : ConstView(args.out);
  if (BackendFor(kOp, on_gpu) == Backend::kCuda) cuda::Transfer(args);
}

}  // namespace tessera::ops
