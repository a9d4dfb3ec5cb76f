// SPDX-License-Identifier: Apache-2.0
#include "autograd/reduce.h"

#include "autograd/tape.h"
#include "tensor/ops/reduce.h"
#include "tensor/ops/scale.h"

namespace tessera {
namespace {

// `shape` with the named dims at size 1, or without them.
Shape ReducedShape(const Shape& shape, std::span<const int> dims, bool keepdim, const char* op) {
  std::array<bool, kMaxRank> reduced{};
  for (int dim : dims) {
    const int normalized = NormalizeDim(dim, shape.rank(), op);
    if (reduced[static_cast<size_t>(normalized)]) throw Error(Str(op, ": dim ", dim, " is named twice"));
    reduced[static_cast<size_t>(normalized)] = true;
  }
  Shape result;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (!reduced[static_cast<size_t>(dim)]) {
      result.push_back(shape[dim]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

// The same elements with dims of size 1 put in or left out.
Tensor Reshaped(const Tensor& x, const Shape& shape) {
  Layout layout;
  if (!x.layout().TryReshape(shape, &layout)) throw Error("reduce: dims of size 1 always come and go without a copy");
  return x.WithLayout(layout);
}

class SumNode final : public Node {
 public:
  SumNode(const char* name, const Input& x, const Shape& kept, double factor)
      : name_(name), shape_(x.shape()), kept_(kept), factor_(factor) {}
  const char* name() const override { return name_; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const Tensor kept = Reshaped(dy, kept_);
    const GradTarget dx = ctx.Target(0, shape_, dy.dtype());
    ops::Scale({.x = kept.WithLayout(kept.layout().Expand(shape_)).Read(),
                .out = dx.buffer.Write(),
                .factor = factor_,
                .accumulate = dx.accumulate});
  }

 private:
  const char* name_;
  Shape shape_, kept_;
  double factor_;
};

Tensor SumOrMean(bool mean, const Input& x, std::span<const int> dims, bool keepdim) {
  const char* op = mean ? "mean" : "sum";
  const Tensor x_data = x.Data();
  const Shape kept = ReducedShape(x_data.shape(), dims, /*keepdim=*/true, op);
  const bool floating = IsFloating(x_data.dtype());
  const ops::SumPlan plan = ops::PlanSum(op, x_data.shape(), kept);
  const Tensor workspace =
      EmptyOn(x_data.device(), {plan.workspace_numel()}, floating ? DType::kF64 : DType::kI64, MemoryTag::kWorkspace);
  Tensor y = EmptyOn(x_data.device(), kept, floating ? x_data.dtype() : DType::kI64);
  ops::ReduceSum({.x = x_data.Read(), .out = y.Write(), .mean = mean, .workspace = workspace.Write()});
  if (!keepdim) y = Reshaped(y, ReducedShape(x_data.shape(), dims, /*keepdim=*/false, op));
  if (Tape* tape = RecordingTape({&x})) {
    const double factor = mean ? 1 / static_cast<double>(plan.terms) : 1;
    tape->Record(std::make_unique<SumNode>(op, x, kept, factor), {&x}, {&y});
  }
  return y;
}

Tensor SumOrMeanOfAll(bool mean, const Input& x) {
  constexpr int kAll[kMaxRank] = {0, 1, 2, 3, 4, 5};
  return SumOrMean(mean, x, std::span(kAll, static_cast<size_t>(x.shape().rank())), false);
}

class MaxNode final : public Node {
 public:
  MaxNode(const Input& x, int dim, const Tensor& index) : shape_(x.shape()), dim_(dim), index_(index) {}
  const char* name() const override { return "max"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const Tensor index = index_.Get(name());
    const GradTarget dx = ctx.Target(0, shape_, dy.dtype());
    ops::ReduceMaxBackward({.dy = Reshaped(dy, index.shape()).Read(),
                            .index = index.Read(),
                            .dx = dx.buffer.Write(),
                            .dim = dim_,
                            .accumulate = dx.accumulate});
  }

 private:
  Shape shape_;
  int dim_;
  Saved index_;
};

}  // namespace

Tensor Sum(const Input& x) { return SumOrMeanOfAll(false, x); }
Tensor Mean(const Input& x) { return SumOrMeanOfAll(true, x); }

Tensor Sum(const Input& x, std::span<const int> dims, bool keepdim) { return SumOrMean(false, x, dims, keepdim); }
Tensor Mean(const Input& x, std::span<const int> dims, bool keepdim) { return SumOrMean(true, x, dims, keepdim); }
Tensor Sum(const Input& x, int dim, bool keepdim) { return SumOrMean(false, x, {&dim, 1}, keepdim); }
Tensor Mean(const Input& x, int dim, bool keepdim) { return SumOrMean(true, x, {&dim, 1}, keepdim); }

Tensor Max(const Input& x, int dim, bool keepdim) {
  const Tensor x_data = x.Data();
  dim = NormalizeDim(dim, x_data.rank(), "max");
  const Shape kept = ReducedShape(x_data.shape(), {&dim, 1}, /*keepdim=*/true, "max");
  Tensor y = EmptyOn(x_data.device(), kept, x_data.dtype());
  Tape* tape = RecordingTape({&x});
  ops::ReduceMaxArgs args{.x = x_data.Read(), .out = y.Write(), .dim = dim};
  Tensor index;
  if (tape != nullptr) {
    index = EmptyOn(x_data.device(), kept, DType::kI64);
    args.index = index.Write();
  }
  ops::ReduceMax(args);
  if (!keepdim) y = Reshaped(y, ReducedShape(x_data.shape(), {&dim, 1}, /*keepdim=*/false, "max"));
  if (tape != nullptr) tape->Record(std::make_unique<MaxNode>(x, dim, index), {&x}, {&y});
  return y;
}

}  // namespace tessera
