// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cross_entropy.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "cross_entropy";

Shape WithoutLast(const Shape& shape) { return Shape(std::span(shape.begin(), static_cast<size_t>(shape.rank() - 1))); }

void CheckAccumulator(DType dtype, const Named& arg, const Shape& shape) {
  CheckShape(kOp, arg, shape);
  CheckDType(kOp, arg, AccumulationType(dtype));
  CheckContiguous(kOp, arg);
}

// The first target that is no class, with its place.
template <class I>
void CheckRange(const char* op, const ConstView& targets, int64_t classes, int64_t ignore_index) {
  Shape index = targets.shape();
  for (int dim = 0; dim < index.rank(); ++dim) index[dim] = 0;
  for (int64_t k = 0, n = targets.numel(); k < n; ++k) {
    int64_t offset = 0;
    for (int dim = 0; dim < index.rank(); ++dim) offset += index[dim] * targets.stride(dim);
    const int64_t target = targets.as<I>()[offset];
    if (target != ignore_index && (target < 0 || target >= classes)) {
      throw Error(Str(op, ": target ", target, " at ", index, " is outside [0, ", classes,
                      ") and is not the ignore_index ", ignore_index));
    }
    for (int dim = index.rank() - 1; dim >= 0 && ++index[dim] == targets.size(dim); --dim) index[dim] = 0;
  }
}

void CheckInputs(const ConstView& logits, const ConstView& targets, int64_t valid_classes, int64_t ignore_index) {
  if (logits.rank() == 0) throw Error("cross_entropy: logits must have at least one dimension");
  CheckFloating(kOp, {"logits", logits});
  CheckDenseRows(kOp, {"logits", logits});
  CheckIndexType(kOp, {"targets", targets});
  CheckShape(kOp, {"targets", targets}, WithoutLast(logits.shape()));
  CheckSameDevice(kOp, {{"logits", logits}, {"targets", targets}});
  const int64_t columns = logits.shape().back();
  if (valid_classes < -1 || valid_classes > columns) {
    throw Error(Str(kOp, ": valid_classes is ", valid_classes, ", logits have ", columns, " columns"));
  }
  CheckTargets(kOp, targets, valid_classes < 0 ? columns : valid_classes, ignore_index);
}

}  // namespace

void CheckTargets(const char* op, const ConstView& targets, int64_t classes, int64_t ignore_index) {
  CheckIndexType(op, {"targets", targets});
  if (!targets.device.is_cpu()) return;
  if (targets.dtype == DType::kI32) {
    CheckRange<int32_t>(op, targets, classes, ignore_index);
  } else {
    CheckRange<int64_t>(op, targets, classes, ignore_index);
  }
}

void CrossEntropyRows(const CrossEntropyRowsArgs& args) {
  CheckInputs(args.logits, args.targets, args.valid_classes, args.ignore_index);
  const DType dtype = args.logits.dtype;
  const Shape rows{RowCount(args.logits.shape())};
  CheckAccumulator(dtype, {"loss", args.loss}, rows);
  if (args.log_sum.present()) CheckAccumulator(dtype, {"log_sum", args.log_sum}, rows);
  if (args.gradient.present()) {
    CheckDType(kOp, {"logits", args.logits}, AccumulationType(dtype));
    CheckSameDType(kOp, {{"logits", args.logits}, {"gradient", args.gradient}});
    CheckSameShape(kOp, {"logits", args.logits}, {"gradient", args.gradient});
    CheckDenseRows(kOp, {"gradient", args.gradient});
    CheckNoOverlap(kOp, {"gradient", args.gradient});
  }
  switch (BackendFor(kOp, args.logits)) {
    case Backend::kCpu:
      return cpu::CrossEntropyRows(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void CrossEntropyBackward(const CrossEntropyBackwardArgs& args) {
  CheckInputs(args.logits, args.targets, args.valid_classes, args.ignore_index);
  const DType dtype = args.logits.dtype;
  CheckAccumulator(dtype, {"log_sum", args.log_sum}, {RowCount(args.logits.shape())});
  CheckAccumulator(dtype, {"dsum", args.dsum}, {});
  CheckSameShape(kOp, {"logits", args.logits}, {"dlogits", args.dlogits});
  CheckSameDType(kOp, {{"logits", args.logits}, {"dlogits", args.dlogits}});
  CheckDenseRows(kOp, {"dlogits", args.dlogits});
  CheckNoOverlap(kOp, {"dlogits", args.dlogits});
  switch (BackendFor(kOp, args.logits)) {
    case Backend::kCpu:
      return cpu::CrossEntropyBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void CrossEntropyTotal(const CrossEntropyTotalArgs& args) {
  CheckFloating(kOp, {"loss", args.loss});
  CheckIndexType(kOp, {"targets", args.targets});
  CheckAccumulator(args.loss.dtype, {"loss", args.loss}, {args.targets.numel()});
  CheckAccumulator(args.loss.dtype, {"sum", args.sum}, {});
  CheckAccumulator(args.loss.dtype, {"weight", args.weight}, {});
  CheckSameDevice(kOp, {{"loss", args.loss}, {"targets", args.targets}, {"sum", args.sum}, {"weight", args.weight}});
  switch (BackendFor(kOp, args.loss)) {
    case Backend::kCpu:
      return cpu::CrossEntropyTotal(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void MeanSeed(const MeanSeedArgs& args) {
  CheckFloating(kOp, {"weight", args.weight});
  CheckAccumulator(args.weight.dtype, {"weight", args.weight}, {});
  CheckAccumulator(args.weight.dtype, {"seed", args.seed}, {});
  CheckSameDevice(kOp, {{"weight", args.weight}, {"seed", args.seed}});
  switch (BackendFor(kOp, args.weight)) {
    case Backend::kCpu:
      return cpu::MeanSeed(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
