// SPDX-License-Identifier: Apache-2.0
// Arithmetic of two tensors with NumPy's broadcasting: y = a + b, a - b, a * b or a / b.
//
// a, b, y: one floating dtype, any layouts (y without overlap). y has the shape that a and b broadcast to; y may be a or b
// where that one has y's shape. Computed in f32 (f64 for f64).
//
// Backward: da = dy, dy, dy b, dy / b and db = dy, -dy, dy a, -(dy / b) (a / b), each summed over the dims that its operand
// lacks. Only the operands that a wanted gradient reads have to be given: see BinaryGradReads. da and db may be of another
// floating dtype and add to their buffers with their accumulate flags. Sums are in the order and accuracy of ReduceSum;
// workspace: BinaryWorkspaceNumel() elements of f64.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv };
const char* Name(BinaryOp op);

enum class BinarySide : uint8_t { kA, kB };
// Which operands the gradient of `side` reads.
struct BinaryReads {
  bool a = false, b = false;
};
BinaryReads BinaryGradReads(BinaryOp op, BinarySide side);

struct BinaryForwardArgs {
  BinaryOp op;
  ConstView a, b;
  View y;
};

struct BinaryBackwardArgs {
  BinaryOp op;
  ConstView dy;
  ConstView a = {}, b = {};  // where read
  View da = {}, db = {};     // optional
  bool accumulate_da = false, accumulate_db = false;
  View workspace = {};
};

void BinaryForward(const BinaryForwardArgs& args);
void BinaryBackward(const BinaryBackwardArgs& args);
int64_t BinaryWorkspaceNumel(const Shape& y, const Shape& operand);  // the larger one of both serves both

TESSERA_CPU_KERNEL(BinaryForward, BinaryForwardArgs)
TESSERA_CPU_KERNEL(BinaryBackward, BinaryBackwardArgs)

}  // namespace tessera::ops
