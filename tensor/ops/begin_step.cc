// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/begin_step.h"

#include "tensor/ops/flat_step.h"

namespace tessera::ops {

void BeginStep(const BeginStepArgs& args) {
  constexpr const char* kOp = "begin_step";
  CheckDType(kOp, {"scalars", args.scalars}, DType::kF64);
  CheckShape(kOp, {"scalars", args.scalars}, {kStepSlotCount});
  CheckContiguous(kOp, {"scalars", args.scalars});
  for (const Named& by_rank : {Named{"sum_squares", args.sum_squares}, Named{"loss_weight", args.loss_weight}}) {
    if (!by_rank.view.present()) continue;
    CheckDType(kOp, by_rank, DType::kF64);
    CheckRank(kOp, by_rank, 1);
    CheckSameDevice(kOp, {{"scalars", args.scalars}, by_rank});
  }
  if (!(args.expected_weight > 0) || args.expected_weight - args.expected_weight != 0) {
    throw Error(Str(kOp, ": expected_weight is ", args.expected_weight, ", expected a finite number > 0"));
  }
  if (args.schedule.present()) {
    CheckDType(kOp, {"schedule", args.schedule}, DType::kF64);
    CheckRank(kOp, {"schedule", args.schedule}, 2);
    CheckContiguous(kOp, {"schedule", args.schedule});
    CheckSameDevice(kOp, {{"scalars", args.scalars}, {"schedule", args.schedule}});
    if (args.schedule.size(0) < 1 || args.schedule.size(1) != 3) {
      throw Error(Str(kOp, ": schedule has shape ", args.schedule.shape(), ", expected (updates, 3), updates >= 1"));
    }
  }
  if (!(args.max_norm >= 0) || args.max_norm - args.max_norm != 0) {
    throw Error(Str(kOp, ": max_norm is ", args.max_norm, ", expected a finite number >= 0 (0: no clipping)"));
  }
  if (args.max_norm > 0 && !args.sum_squares.present()) {
    throw Error(Str(kOp, ": max_norm is ", args.max_norm, " and sum_squares is absent; clipping needs the norm"));
  }
  switch (BackendFor(kOp, args.scalars)) {
    case Backend::kCpu:
      return cpu::BeginStep(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
