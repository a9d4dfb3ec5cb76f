// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/sum_squares.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

int64_t SumSquaresWorkspaceNumel(int64_t numel) {
  int64_t total = 0;
  do {
    numel = (numel + kSumBlock - 1) / kSumBlock;
    total += numel;
  } while (numel > 1);
  return total;
}

void SumSquares(const SumSquaresArgs& args) {
  constexpr const char* kOp = "sum_squares";
  CheckFloating(kOp, {"x", args.x});
  CheckContiguous(kOp, {"x", args.x});
  CheckDType(kOp, {"out", args.out}, DType::kF64);
  CheckShape(kOp, {"out", args.out}, {1});
  CheckDType(kOp, {"workspace", args.workspace}, DType::kF64);
  CheckRank(kOp, {"workspace", args.workspace}, 1);
  CheckContiguous(kOp, {"workspace", args.workspace});
  CheckSameDevice(kOp, {{"x", args.x}, {"out", args.out}, {"workspace", args.workspace}});
  const int64_t needed = SumSquaresWorkspaceNumel(args.x.numel());
  if (args.workspace.numel() < needed) {
    throw Error(Str(kOp, ": workspace has ", args.workspace.numel(), " elements, ", args.x.numel(),
                    " elements of x need ", needed));
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::SumSquares(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
