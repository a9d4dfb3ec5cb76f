// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/rope.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void Rope(const RopeArgs& args) {
  constexpr const char* kOp = "rope";
  CheckRank(kOp, {"x", args.x}, 4);
  CheckFloating(kOp, {"x", args.x});
  CheckDenseRows(kOp, {"x", args.x});
  CheckSameShape(kOp, {"x", args.x}, {"y", args.y});
  CheckSameDType(kOp, {{"x", args.x}, {"y", args.y}});
  CheckDenseRows(kOp, {"y", args.y});
  CheckNoOverlap(kOp, {"y", args.y});
  CheckSameDevice(kOp, {{"x", args.x}, {"y", args.y}, {"table", args.table}});
  CheckRank(kOp, {"table", args.table}, 2);
  CheckContiguous(kOp, {"table", args.table});
  CheckDType(kOp, {"table", args.table}, AccumulationType(args.x.dtype));
  const int64_t time = args.x.size(1), heads = args.x.size(2), width = args.x.size(3);
  if (width % 2 != 0 || width != args.table.size(1)) {
    throw Error(Str("rope: heads of ", width, " features, the table is for ", args.table.size(1)));
  }
  if (args.position_offset < 0 || args.position_offset + time > args.table.size(0)) {
    throw Error(Str("rope: positions ", args.position_offset, " to ", args.position_offset + time,
                    " (exclusive) are outside the table's ", args.table.size(0)));
  }
  if (args.rotated_heads < -1 || args.rotated_heads > heads) {
    throw Error(Str("rope: rotated_heads is ", args.rotated_heads, ", x has ", heads, " heads"));
  }
  switch (BackendFor(kOp, args.x)) {
    case Backend::kCpu:
      return cpu::Rope(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
