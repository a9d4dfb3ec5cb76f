// SPDX-License-Identifier: Apache-2.0
#include "autograd/elementwise.h"

#include "autograd/tape.h"
#include "tensor/ops/binary.h"
#include "tensor/ops/scale.h"
#include "tensor/ops/unary.h"

namespace tessera {
namespace {

using ops::BinaryOp;
using ops::BinaryReads;
using ops::BinarySide;
using ops::UnaryOp;
using ops::UnarySaved;

class UnaryNode final : public Node {
 public:
  UnaryNode(UnaryOp op, Saved saved) : op_(op), saved_(std::move(saved)) {}
  const char* name() const override { return ops::Name(op_); }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const Tensor saved = saved_.Get(name());
    const GradTarget dx = ctx.Target(0, dy.shape(), dy.dtype());
    ops::UnaryBackward({.op = op_,
                        .dy = dy.Read(),
                        .saved = saved.defined() ? saved.Read() : ConstView(),
                        .dx = dx.buffer.Write(),
                        .accumulate = dx.accumulate});
  }

 private:
  UnaryOp op_;
  Saved saved_;
};

Tensor Unary(UnaryOp op, const Input& x) {
  const Tensor x_data = x.Data();
  Tensor y = EmptyLike(x_data);
  ops::UnaryForward({.op = op, .x = x_data.Read(), .y = y.Write()});
  if (Tape* tape = RecordingTape({&x})) {
    Saved saved;
    if (ops::SavedFor(op) == UnarySaved::kX) saved = Saved(x);
    if (ops::SavedFor(op) == UnarySaved::kY) saved = Saved(y);
    tape->Record(std::make_unique<UnaryNode>(op, std::move(saved)), {&x}, {&y});
  }
  return y;
}

class BinaryNode final : public Node {
 public:
  BinaryNode(BinaryOp op, const Input& a, const Input& b) : op_(op), a_shape_(a.shape()), b_shape_(b.shape()) {
    BinaryReads reads;
    for (const auto& [input, side] : {std::pair(&a, BinarySide::kA), std::pair(&b, BinarySide::kB)}) {
      if (!input->tracked()) continue;
      const BinaryReads more = ops::BinaryGradReads(op, side);
      reads.a |= more.a;
      reads.b |= more.b;
    }
    if (reads.a) a_ = Saved(a);
    if (reads.b) b_ = Saved(b);
  }
  const char* name() const override { return ops::Name(op_); }

  void Backward(BackwardContext& ctx) override {
    const Tensor a = a_.Get(name()), b = b_.Get(name());
    if (ctx.Needs(0)) Gradient(ctx, BinarySide::kA, a, b);
    if (ctx.Needs(1)) Gradient(ctx, BinarySide::kB, a, b);
  }

 private:
  void Gradient(BackwardContext& ctx, BinarySide side, const Tensor& a, const Tensor& b) {
    const Tensor& dy = ctx.OutputGrad();
    const int input = side == BinarySide::kA ? 0 : 1;
    const Shape& shape = side == BinarySide::kA ? a_shape_ : b_shape_;
    const bool passes = op_ == BinaryOp::kAdd || (op_ == BinaryOp::kSub && side == BinarySide::kA);
    if (passes && shape == dy.shape()) return ctx.AddGrad(input, dy);

    const GradTarget target = ctx.Target(input, shape, dy.dtype());
    ops::BinaryBackwardArgs args{.op = op_, .dy = dy.Read()};
    Tensor workspace;
    if (const int64_t numel = ops::BinaryWorkspaceNumel(dy.shape(), shape)) {
      workspace = EmptyOn(dy.device(), {numel}, DType::kF64, MemoryTag::kWorkspace);
      args.workspace = workspace.Write();
    }
    if (a.defined()) args.a = a.Read();
    if (b.defined()) args.b = b.Read();
    if (side == BinarySide::kA) {
      args.da = target.buffer.Write();
      args.accumulate_da = target.accumulate;
    } else {
      args.db = target.buffer.Write();
      args.accumulate_db = target.accumulate;
    }
    ops::BinaryBackward(args);
  }

  BinaryOp op_;
  Shape a_shape_, b_shape_;
  Saved a_, b_;
};

Tensor Binary(BinaryOp op, const Input& a, const Input& b) {
  const Tensor a_data = a.Data(), b_data = b.Data();
  Tensor y = EmptyOn(a_data.device(), BroadcastShapes(a_data.shape(), b_data.shape(), ops::Name(op)), a_data.dtype());
  ops::BinaryForward({.op = op, .a = a_data.Read(), .b = b_data.Read(), .y = y.Write()});
  if (Tape* tape = RecordingTape({&a, &b})) {
    tape->Record(std::make_unique<BinaryNode>(op, a, b), {&a, &b}, {&y});
  }
  return y;
}

class ScaleNode final : public Node {
 public:
  explicit ScaleNode(double factor) : factor_(factor) {}
  const char* name() const override { return "scale"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    if (factor_ == 1) return ctx.AddGrad(0, dy);
    const GradTarget dx = ctx.Target(0, dy.shape(), dy.dtype());
    ops::Scale({.x = dy.Read(), .out = dx.buffer.Write(), .factor = factor_, .accumulate = dx.accumulate});
  }

 private:
  double factor_;
};

Tensor Affine(const Input& x, double factor, double shift) {
  const Tensor x_data = x.Data();
  Tensor y = EmptyLike(x_data);
  ops::Scale({.x = x_data.Read(), .out = y.Write(), .factor = factor, .shift = shift});
  if (Tape* tape = RecordingTape({&x})) tape->Record(std::make_unique<ScaleNode>(factor), {&x}, {&y});
  return y;
}

}  // namespace

Tensor Neg(const Input& x) { return Unary(UnaryOp::kNeg, x); }
Tensor Exp(const Input& x) { return Unary(UnaryOp::kExp, x); }
Tensor Log(const Input& x) { return Unary(UnaryOp::kLog, x); }
Tensor Sqrt(const Input& x) { return Unary(UnaryOp::kSqrt, x); }
Tensor Rsqrt(const Input& x) { return Unary(UnaryOp::kRsqrt, x); }
Tensor Square(const Input& x) { return Unary(UnaryOp::kSquare, x); }
Tensor Abs(const Input& x) { return Unary(UnaryOp::kAbs, x); }
Tensor Reciprocal(const Input& x) { return Unary(UnaryOp::kReciprocal, x); }
Tensor Tanh(const Input& x) { return Unary(UnaryOp::kTanh, x); }
Tensor Sigmoid(const Input& x) { return Unary(UnaryOp::kSigmoid, x); }
Tensor Relu(const Input& x) { return Unary(UnaryOp::kRelu, x); }
Tensor Silu(const Input& x) { return Unary(UnaryOp::kSilu, x); }
Tensor Gelu(const Input& x, GeluKind kind) {
  return Unary(kind == GeluKind::kTanh ? UnaryOp::kGeluTanh : UnaryOp::kGeluErf, x);
}

Tensor Add(const Input& a, const Input& b) { return Binary(BinaryOp::kAdd, a, b); }
Tensor Sub(const Input& a, const Input& b) { return Binary(BinaryOp::kSub, a, b); }
Tensor Mul(const Input& a, const Input& b) { return Binary(BinaryOp::kMul, a, b); }
Tensor Div(const Input& a, const Input& b) { return Binary(BinaryOp::kDiv, a, b); }

Tensor Scale(const Input& x, double factor) { return Affine(x, factor, 0); }
Tensor AddScalar(const Input& x, double shift) { return Affine(x, 1, shift); }

}  // namespace tessera
