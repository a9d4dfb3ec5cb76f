// SPDX-License-Identifier: Apache-2.0
#include "autograd/linear.h"

#include "autograd/tape.h"
#include "tensor/ops/gemm.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/reduce.h"
#include "tensor/ops/unary.h"

namespace tessera {
namespace {

class LinearNode final : public Node {
 public:
  // pre_activation is defined for LinearGelu alone.
  LinearNode(const Input& x, const Input& weight, const Input& bias, const Tensor& pre_activation)
      : x_shape_(x.shape()), weight_shape_(weight.shape()), dtype_(x.dtype()), pre_activation_(pre_activation) {
    if (weight.tracked()) x_ = x;
    if (x.tracked()) weight_ = weight;
    if (bias.present()) bias_shape_ = bias.shape();
  }
  const char* name() const override { return pre_activation_.present() ? "linear_gelu" : "linear"; }

  void Backward(BackwardContext& ctx) override {
    Tensor dy = ctx.DenseOutputGrad();
    if (pre_activation_.present()) {
      const Tensor s = pre_activation_.Get(name());
      Tensor ds = EmptyLike(s);
      ops::UnaryBackward({.op = ops::UnaryOp::kGeluTanh, .dy = dy.Read(), .saved = s.Read(), .dx = ds.Write()});
      dy = ds;
      pre_activation_ = Saved();
    }
    ops::LinearBackwardArgs args{.dy = dy.Read()};
    Tensor x, weight;
    if (ctx.Needs(0)) {
      weight = weight_.Get(name());
      const GradTarget target = ctx.Target(0, x_shape_, dtype_);
      args.weight = weight.Read();
      args.dx = target.buffer.Write();
      args.accumulate_dx = target.accumulate;
    }
    if (ctx.Needs(1)) {
      x = x_.Get(name());
      const GradTarget target = ctx.Target(1, weight_shape_, dtype_);
      args.x = x.Read();
      args.dweight = target.buffer.Write();
      args.accumulate_dweight = target.accumulate;
    }
    if (ctx.Needs(2)) {
      const GradTarget target = ctx.Target(2, bias_shape_, dtype_);
      args.dbias = target.buffer.Write();
      args.accumulate_dbias = target.accumulate;
    }
    ops::LinearBackward(args);
  }

 private:
  Shape x_shape_, weight_shape_, bias_shape_;
  DType dtype_;
  Saved x_, weight_, pre_activation_;
};

Tensor LinearForward(const Input& x, const Input& weight, const Input& bias, bool gelu) {
  const Tensor x_data = x.Data(), weight_data = weight.Data();
  const Tensor bias_data = bias.present() ? bias.Data() : Tensor();
  if (x_data.rank() == 0) throw Error("linear: x must have at least one dimension");
  if (weight_data.rank() != 2) throw Error(Str("linear: weight must have rank 2, got shape ", weight_data.shape()));
  Shape shape = x_data.shape();
  shape[x_data.rank() - 1] = weight_data.size(0);
  Tensor y = EmptyOn(x_data.device(), shape, x_data.dtype());
  Tape* tape = RecordingTape({&x, &weight, &bias});
  const Tensor pre_activation = gelu && tape != nullptr ? EmptyLike(y) : Tensor();
  ops::LinearForward({.x = x_data.Read(),
                      .weight = weight_data.Read(),
                      .bias = bias_data.defined() ? bias_data.Read() : ConstView{},
                      .y = y.Write(),
                      .gelu = gelu,
                      .pre_activation = pre_activation.defined() ? pre_activation.Write() : View{}});
  if (tape != nullptr) {
    tape->Record(std::make_unique<LinearNode>(x, weight, bias, pre_activation), {&x, &weight, &bias}, {&y});
  }
  return y;
}

// Sums a gradient of the broadcast shape back to the shape of the operand it belongs to.
Tensor ReduceTo(const Tensor& grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  Tensor result = EmptyOn(grad.device(), shape, grad.dtype());
  const Tensor workspace = EmptyOn(grad.device(), {ops::PlanSum("matmul", grad.shape(), shape).workspace_numel()},
                                   DType::kF64, MemoryTag::kWorkspace);
  ops::ReduceSum({.x = grad.Read(), .out = result.Write(), .workspace = workspace.Write()});
  return result;
}

Layout Swapped(const Tensor& matrix) { return matrix.layout().Transpose(-2, -1); }

class MatmulNode final : public Node {
 public:
  MatmulNode(const Input& a, const Input& b) : a_shape_(a.shape()), b_shape_(b.shape()) {
    if (b.tracked()) a_ = a;
    if (a.tracked()) b_ = b;
  }
  const char* name() const override { return "matmul"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    if (ctx.Needs(0)) {  // da = dy b^T
      const Tensor b = b_.Get(name());
      ctx.AddGrad(0, Product(dy, b.WithLayout(Swapped(b)), a_shape_));
    }
    if (ctx.Needs(1)) {  // db = a^T dy
      const Tensor a = a_.Get(name());
      ctx.AddGrad(1, Product(a.WithLayout(Swapped(a)), dy, b_shape_));
    }
  }

 private:
  static Tensor Product(const Tensor& a, const Tensor& b, const Shape& reduce_to);
  Shape a_shape_, b_shape_;
  Saved a_, b_;
};

Shape ProductShape(const Shape& a, const Shape& b) {
  if (a.rank() < 2 || b.rank() < 2) throw Error(Str("matmul: a and b must have rank 2 or more, got ", a, " and ", b));
  const auto leading = [](const Shape& shape) {
    return Shape(std::span<const int64_t>(shape.begin(), static_cast<size_t>(shape.rank() - 2)));
  };
  Shape shape = BroadcastShapes(leading(a), leading(b), "matmul");
  shape.push_back(a[a.rank() - 2]);
  shape.push_back(b.back());
  return shape;
}

Tensor MatmulNode::Product(const Tensor& a, const Tensor& b, const Shape& reduce_to) {
  Tensor result = EmptyOn(a.device(), ProductShape(a.shape(), b.shape()), a.dtype());
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = result.Write()});
  return ReduceTo(result, reduce_to);
}

}  // namespace

Tensor Linear(const Input& x, const Input& weight, const Input& bias) { return LinearForward(x, weight, bias, false); }

Tensor LinearGelu(const Input& x, const Input& weight, const Input& bias) {
  return LinearForward(x, weight, bias, true);
}

Tensor Matmul(const Input& a, const Input& b) {
  const Tensor a_data = a.Data(), b_data = b.Data();
  if (a_data.dtype() != b_data.dtype()) {
    throw Error(Str("matmul: a is ", Name(a_data.dtype()), ", b is ", Name(b_data.dtype()), "; they must be equal"));
  }
  Tensor y = EmptyOn(a_data.device(), ProductShape(a_data.shape(), b_data.shape()), a_data.dtype());
  ops::Gemm({.a = a_data.Read(), .b = b_data.Read(), .c = y.Write()});
  if (Tape* tape = RecordingTape({&a, &b})) tape->Record(std::make_unique<MatmulNode>(a, b), {&a, &b}, {&y});
  return y;
}

}  // namespace tessera
