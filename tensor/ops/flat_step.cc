// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/flat_step.h"

namespace tessera::ops {
namespace {

void CheckRange(const char* op, const Named& arg, const ConstView& master) {
  if (!arg.view.present()) throw Error(Str(op, ": ", arg.name, " is absent, expected shape ", master.shape()));
  CheckSameShape(op, {"master", master}, arg);
  CheckContiguous(op, arg);
  CheckSameDevice(op, {{"master", master}, arg});
}

void CheckDisjoint(const char* op, const Named& a, const Named& b) {
  if (a.view.data == nullptr || b.view.data == nullptr || a.view.numel() == 0) return;
  const char* a_begin = a.view.as<char>() + a.view.layout.offset() * (ItemSize(a.view.dtype) - 1);
  const char* b_begin = b.view.as<char>() + b.view.layout.offset() * (ItemSize(b.view.dtype) - 1);
  if (a_begin + a.view.numel() * ItemSize(a.view.dtype) <= b_begin) return;
  if (b_begin + b.view.numel() * ItemSize(b.view.dtype) <= a_begin) return;
  throw Error(Str(op, ": ", a.name, " and ", b.name, " share memory; they must be disjoint"));
}

}  // namespace

void CheckFlatStep(const char* op, const ConstView& master, const ConstView& gradient,
                   std::initializer_list<Named> states, const ConstView& low_precision, const ConstView& scalars) {
  const Named first{"master", master};
  if (!master.present()) throw Error(Str(op, ": master is absent"));
  CheckRank(op, first, 1);
  if (master.dtype != DType::kF32 && master.dtype != DType::kF64) {
    throw Error(Str(op, ": master is ", Name(master.dtype), ", expected f32 or f64"));
  }
  CheckContiguous(op, first);
  CheckRange(op, {"gradient", gradient}, master);
  CheckFloating(op, {"gradient", gradient});
  CheckDisjoint(op, first, {"gradient", gradient});
  for (const Named& state : states) {
    CheckRange(op, state, master);
    CheckSameDType(op, {first, state});
    CheckDisjoint(op, first, state);
    CheckDisjoint(op, {"gradient", gradient}, state);
    for (const Named* other = states.begin(); other != &state; ++other) CheckDisjoint(op, *other, state);
  }
  if (low_precision.present()) {
    const Named low{"low_precision", low_precision};
    CheckRange(op, low, master);
    if (!IsLowPrecision(low_precision.dtype) || master.dtype != DType::kF32) {
      throw Error(Str(op, ": low_precision is ", Name(low_precision.dtype), " and master ", Name(master.dtype),
                      ", expected bf16 or f16 beside f32"));
    }
    CheckDisjoint(op, first, low);
    CheckDisjoint(op, {"gradient", gradient}, low);
    for (const Named& state : states) CheckDisjoint(op, state, low);
  }
  CheckDType(op, {"scalars", scalars}, DType::kF64);
  CheckShape(op, {"scalars", scalars}, {kStepSlotCount});
  CheckContiguous(op, {"scalars", scalars});
  CheckSameDevice(op, {first, {"scalars", scalars}});
}

}  // namespace tessera::ops
