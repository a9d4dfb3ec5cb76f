// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/embedding.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "embedding";

// `table` is weight or its gradient (V, C), `rows` is y or its gradient.
void CheckCommon(const Named& table, const ConstView& ids, const Named& rows) {
  CheckIndexType(kOp, {"ids", ids});
  CheckRank(kOp, table, 2);
  CheckSameDevice(kOp, {table, {"ids", ids}, rows});
  if (ids.rank() == kMaxRank) throw Error(Str(kOp, ": ids has shape ", ids.shape(), ", expected at most 5 dimensions"));
  Shape expected = ids.shape();
  expected.push_back(table.view.size(1));
  CheckShape(kOp, rows, expected);
  if (ids.device.is_cpu()) CheckIndexRange(kOp, {"ids", ids}, table.view.size(0));
}

}  // namespace

int64_t EmbeddingWorkspaceNumel(int64_t rows, int64_t ids) { return rows + ids; }

void EmbeddingForward(const EmbeddingForwardArgs& args) {
  CheckSameDType(kOp, {{"weight", args.weight}, {"y", args.y}});
  CheckNoOverlap(kOp, {"y", args.y});
  CheckCommon({"weight", args.weight}, args.ids, {"y", args.y});
  switch (BackendFor(kOp, args.weight)) {
    case Backend::kCpu:
      return cpu::EmbeddingForward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void EmbeddingBackward(const EmbeddingBackwardArgs& args) {
  CheckFloating(kOp, {"dy", args.dy});
  CheckFloating(kOp, {"dweight", args.dweight});
  CheckNoOverlap(kOp, {"dweight", args.dweight});
  CheckCommon({"dweight", args.dweight}, args.ids, {"dy", args.dy});
  CheckDType(kOp, {"workspace", args.workspace}, DType::kI64);
  CheckShape(kOp, {"workspace", args.workspace}, {EmbeddingWorkspaceNumel(args.dweight.size(0), args.ids.numel())});
  switch (BackendFor(kOp, args.dy)) {
    case Backend::kCpu:
      return cpu::EmbeddingBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
