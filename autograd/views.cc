// SPDX-License-Identifier: Apache-2.0
#include "autograd/views.h"

#include <algorithm>

#include "autograd/tape.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/reduce.h"

namespace tessera {
namespace {

// x under `layout`: a view of a tensor, a copy of a parameter's data (which may be gone when the view is still there).
Tensor ViewOf(const Input& x, const Tensor& data, const Layout& layout) {
  Tensor view = data.WithLayout(layout);
  return x.is_param() ? CopyTo(view, view.dtype()) : view;
}

// The gradient in another shape. Gradients of views are written dense, so this copies only what another function left
// strided.
Tensor GradReshaped(const Tensor& grad, const Shape& shape) {
  Layout layout;
  if (grad.layout().TryReshape(shape, &layout)) return grad.WithLayout(layout);
  const Tensor dense = CopyTo(grad, grad.dtype());
  return dense.WithLayout(Layout::Contiguous(shape));
}

class ReshapeNode final : public Node {
 public:
  ReshapeNode(const char* name, const Shape& shape) : name_(name), shape_(shape) {}
  const char* name() const override { return name_; }
  void Backward(BackwardContext& ctx) override { ctx.AddGrad(0, GradReshaped(ctx.OutputGrad(), shape_)); }

 private:
  const char* name_;
  Shape shape_;
};

// Also Contiguous, Squeeze and Unsqueeze, which are reshapes by other names.
Tensor ReshapeAs(const char* name, const Input& x, const Tensor& data, const Shape& shape) {
  Layout layout;
  Tensor y;
  if (data.layout().TryReshape(shape, &layout)) {
    y = ViewOf(x, data, layout);
  } else {
    y = CopyTo(data, data.dtype());
    y = y.WithLayout(Layout::Contiguous(shape));
  }
  if (Tape* tape = RecordingTape({&x})) {
    tape->Record(std::make_unique<ReshapeNode>(name, data.shape()), {&x}, {&y});
  }
  return y;
}

class PermuteNode final : public Node {
 public:
  PermuteNode(const char* name, const Shape& shape, std::span<const int> order) : name_(name), shape_(shape) {
    std::copy(order.begin(), order.end(), order_.begin());
  }
  const char* name() const override { return name_; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const GradTarget dx = ctx.Target(0, shape_, dy.dtype());
    const Layout permuted = dx.buffer.layout().Permute(std::span(order_).first(static_cast<size_t>(shape_.rank())));
    ops::Copy({.x = dy.Read(), .out = dx.buffer.WithLayout(permuted).Write(), .accumulate = dx.accumulate});
  }

 private:
  const char* name_;
  Shape shape_;
  std::array<int, kMaxRank> order_{};
};

Tensor PermuteAs(const char* name, const Input& x, std::span<const int> order) {
  const Tensor data = x.Data();
  Tensor y = ViewOf(x, data, data.layout().Permute(order));
  if (Tape* tape = RecordingTape({&x})) {
    tape->Record(std::make_unique<PermuteNode>(name, data.shape(), order), {&x}, {&y});
  }
  return y;
}

// Pieces of x along a dim: one for Narrow, all of them for Split.
class PiecesNode final : public Node {
 public:
  PiecesNode(const char* name, const Shape& shape, int dim, int64_t start, int64_t length, int parts)
      : name_(name), shape_(shape), dim_(dim), start_(start), length_(length), parts_(parts) {}
  const char* name() const override { return name_; }

  void Backward(BackwardContext& ctx) override {
    DType dtype = DType::kF32;
    bool covered = start_ == 0 && length_ * parts_ == shape_[dim_];
    for (int part = 0; part < parts_; ++part) {
      const Tensor& dy = ctx.OutputGrad(part);
      if (dy.defined()) dtype = dy.dtype();
      covered = covered && dy.defined();
    }
    const GradTarget dx = ctx.Target(0, shape_, dtype);
    if (!dx.accumulate && !covered) ops::Fill({.out = dx.buffer.Write(), .value = 0});
    for (int part = 0; part < parts_; ++part) {
      const Tensor& dy = ctx.OutputGrad(part);
      if (!dy.defined()) continue;
      const Layout piece = dx.buffer.layout().Narrow(dim_, start_ + part * length_, length_);
      ops::Copy({.x = dy.Read(), .out = dx.buffer.WithLayout(piece).Write(), .accumulate = dx.accumulate || !covered});
    }
  }

 private:
  const char* name_;
  Shape shape_;
  int dim_;
  int64_t start_, length_;
  int parts_;
};

class ExpandNode final : public Node {
 public:
  explicit ExpandNode(const Shape& shape) : shape_(shape) {}
  const char* name() const override { return "expand"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const int64_t workspace_numel = ops::PlanSum(name(), dy.shape(), shape_).workspace_numel();
    const Tensor workspace = EmptyOn(dy.device(), {workspace_numel}, DType::kF64, MemoryTag::kWorkspace);
    const GradTarget dx = ctx.Target(0, shape_, dy.dtype());
    ops::ReduceSum(
        {.x = dy.Read(), .out = dx.buffer.Write(), .accumulate = dx.accumulate, .workspace = workspace.Write()});
  }

 private:
  Shape shape_;
};

class ConcatNode final : public Node {
 public:
  ConcatNode(std::vector<Shape> shapes, int dim) : shapes_(std::move(shapes)), dim_(dim) {}
  const char* name() const override { return "concat"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    int64_t start = 0;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const int64_t length = shapes_[i][dim_];
      const int input = static_cast<int>(i);
      if (ctx.Needs(input)) {
        const GradTarget dx = ctx.Target(input, shapes_[i], dy.dtype());
        ops::Copy({.x = dy.WithLayout(dy.layout().Narrow(dim_, start, length)).Read(),
                   .out = dx.buffer.Write(),
                   .accumulate = dx.accumulate});
      }
      start += length;
    }
  }

 private:
  std::vector<Shape> shapes_;
  int dim_;
};

class CastNode final : public Node {
 public:
  explicit CastNode(DType dtype) : dtype_(dtype) {}
  const char* name() const override { return "cast"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const GradTarget dx = ctx.Target(0, dy.shape(), dtype_);
    ops::Copy({.x = dy.Read(), .out = dx.buffer.Write(), .accumulate = dx.accumulate});
  }

 private:
  DType dtype_;
};

}  // namespace

Tensor Reshape(const Input& x, const Shape& shape) {
  const Tensor data = x.Data();
  return ReshapeAs("reshape", x, data, ResolveShape(shape, data.numel(), "reshape"));
}

Tensor Squeeze(const Input& x, int dim) {
  const Tensor data = x.Data();
  dim = NormalizeDim(dim, data.rank(), "squeeze");
  if (data.size(dim) != 1) {
    throw Error(Str("squeeze: dim ", dim, " of shape ", data.shape(), " has size ", data.size(dim), ", expected 1"));
  }
  Shape shape;
  for (int d = 0; d < data.rank(); ++d) {
    if (d != dim) shape.push_back(data.size(d));
  }
  return ReshapeAs("squeeze", x, data, shape);
}

Tensor Unsqueeze(const Input& x, int dim) {
  const Tensor data = x.Data();
  dim = NormalizeDim(dim, data.rank() + 1, "unsqueeze");
  Shape shape;
  for (int d = 0; d <= data.rank(); ++d) {
    if (d == dim) shape.push_back(1);
    if (d < data.rank()) shape.push_back(data.size(d));
  }
  return ReshapeAs("unsqueeze", x, data, shape);
}

Tensor Contiguous(const Input& x) {
  const Tensor data = x.Data();
  if (!x.is_param() && data.layout().IsContiguous()) return data;
  Tensor y = CopyTo(data, data.dtype());
  if (Tape* tape = RecordingTape({&x})) {
    tape->Record(std::make_unique<ReshapeNode>("contiguous", data.shape()), {&x}, {&y});
  }
  return y;
}

Tensor Transpose(const Input& x, int dim0, int dim1) {
  const int rank = x.shape().rank();
  std::array<int, kMaxRank> order{0, 1, 2, 3, 4, 5};
  std::swap(order[static_cast<size_t>(NormalizeDim(dim0, rank, "transpose"))],
            order[static_cast<size_t>(NormalizeDim(dim1, rank, "transpose"))]);
  return PermuteAs("transpose", x, std::span(order).first(static_cast<size_t>(rank)));
}

Tensor Permute(const Input& x, std::span<const int> order) { return PermuteAs("permute", x, order); }

Tensor Narrow(const Input& x, int dim, int64_t start, int64_t length) {
  const Tensor data = x.Data();
  dim = NormalizeDim(dim, data.rank(), "narrow");
  Tensor y = ViewOf(x, data, data.layout().Narrow(dim, start, length));
  if (Tape* tape = RecordingTape({&x})) {
    tape->Record(std::make_unique<PiecesNode>("narrow", data.shape(), dim, start, length, 1), {&x}, {&y});
  }
  return y;
}

Tensor Select(const Input& x, int dim, int64_t index) {
  dim = NormalizeDim(dim, x.shape().rank(), "select");
  if (index < 0 || index >= x.shape()[dim]) {
    throw Error(Str("select: index ", index, " is outside dim ", dim, " of shape ", x.shape()));
  }
  return Squeeze(Narrow(x, dim, index, 1), dim);
}

std::vector<Tensor> Split(const Input& x, int parts, int dim) {
  const Tensor data = x.Data();
  dim = NormalizeDim(dim, data.rank(), "split");
  if (parts < 1 || data.size(dim) % parts != 0) {
    throw Error(Str("split: dim ", dim, " of shape ", data.shape(), " does not divide into ", parts, " parts"));
  }
  const int64_t length = data.size(dim) / parts;
  std::vector<Tensor> pieces;
  std::vector<Tensor*> outputs;
  for (int part = 0; part < parts; ++part) {
    pieces.push_back(ViewOf(x, data, data.layout().Narrow(dim, part * length, length)));
  }
  if (Tape* tape = RecordingTape({&x})) {
    for (Tensor& piece : pieces) outputs.push_back(&piece);
    const Input* const inputs[] = {&x};
    tape->Record(std::make_unique<PiecesNode>("split", data.shape(), dim, 0, length, parts), inputs, outputs);
  }
  return pieces;
}

Tensor Expand(const Input& x, const Shape& shape) {
  const Tensor data = x.Data();
  Tensor y = ViewOf(x, data, data.layout().Expand(shape));
  if (Tape* tape = RecordingTape({&x})) tape->Record(std::make_unique<ExpandNode>(data.shape()), {&x}, {&y});
  return y;
}

Tensor Concat(std::span<const Tensor> tensors, int dim) {
  constexpr const char* kOp = "concat";
  if (tensors.empty()) throw Error("concat: no tensors were given");
  Shape shape = tensors[0].shape();
  dim = NormalizeDim(dim, shape.rank(), kOp);
  shape[dim] = 0;
  std::vector<Shape> shapes;
  std::vector<Input> inputs;
  for (const Tensor& tensor : tensors) {
    Shape expected = shape;
    expected[dim] = tensor.rank() == shape.rank() ? tensor.size(dim) : -1;
    if (tensor.shape() != expected || tensor.dtype() != tensors[0].dtype()) {
      throw Error(Str(kOp, ": ", tensor, " does not fit ", tensors[0], ": dtypes and all sizes but that of dim ", dim,
                      " must be equal"));
    }
    shape[dim] += tensor.size(dim);
    shapes.push_back(tensor.shape());
    inputs.emplace_back(tensor);
  }
  Tensor y = EmptyOn(tensors[0].device(), shape, tensors[0].dtype());
  int64_t start = 0;
  for (const Tensor& tensor : tensors) {
    const Layout piece = y.layout().Narrow(dim, start, tensor.size(dim));
    ops::Copy({.x = tensor.Read(), .out = y.WithLayout(piece).Write()});
    start += tensor.size(dim);
  }
  std::vector<const Input*> pointers;
  for (const Input& input : inputs) pointers.push_back(&input);
  if (Tape* tape = RecordingTape(pointers)) {
    Tensor* const outputs[] = {&y};
    tape->Record(std::make_unique<ConcatNode>(std::move(shapes), dim), pointers, outputs);
  }
  return y;
}

Tensor Cast(const Input& x, DType dtype) {
  const Tensor data = x.Data();
  if (!x.is_param() && data.dtype() == dtype) return data;
  Tensor y = CopyTo(data, dtype);
  if (!IsFloating(dtype)) return y;
  if (Tape* tape = RecordingTape({&x})) tape->Record(std::make_unique<CastNode>(data.dtype()), {&x}, {&y});
  return y;
}

}  // namespace tessera
