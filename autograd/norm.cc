// SPDX-License-Identifier: Apache-2.0
#include "autograd/norm.h"

#include "autograd/tape.h"
#include "tensor/ops/layer_norm.h"
#include "tensor/ops/rms_norm.h"

namespace tessera {
namespace {

// The inputs of all four functions, in this order; plain norms have no residual, RmsNorm has no bias.
enum : int { kX, kWeight, kBias, kResidual };

// The fused functions have two outputs: sum, normed.
struct OutputGrads {
  OutputGrads(BackwardContext& ctx, bool fused)
      : dsum(fused ? ctx.DenseOutputGrad(0) : Tensor()), dy(ctx.DenseOutputGrad(fused ? 1 : 0)) {}
  Tensor dsum, dy;
};

// The gradient of a + b goes to both.
void AddInputGrads(BackwardContext& ctx, const Tensor& dx) {
  ctx.AddGrad(kX, dx);
  ctx.AddGrad(kResidual, dx);
}

class RmsNormNode final : public Node {
 public:
  // x is what was normalised.
  RmsNormNode(Saved x, const Input& weight, const Tensor& rstd, bool fused)
      : x_(std::move(x)), weight_(weight), rstd_(rstd), fused_(fused) {}
  const char* name() const override { return "rms_norm"; }

  void Backward(BackwardContext& ctx) override {
    const OutputGrads grads(ctx, fused_);
    if (!grads.dy.defined()) return AddInputGrads(ctx, grads.dsum);
    const Tensor x = x_.Get(name()), weight = weight_.Get(name()), rstd = rstd_.Get(name());
    ops::RmsNormBackwardArgs args{.dy = grads.dy.Read(), .x = x.Read(), .weight = weight.Read(), .rstd = rstd.Read()};
    Tensor dx, workspace;
    GradTarget dweight;
    if (grads.dsum.defined()) args.dsum = grads.dsum.Read();
    if (ctx.Needs(kX) || ctx.Needs(kResidual)) {
      dx = EmptyOn(x.device(), x.shape(), x.dtype());
      args.dx = dx.Write();
    }
    if (ctx.Needs(kWeight)) {
      dweight = ctx.Target(kWeight, weight.shape(), weight.dtype());
      workspace = EmptyOn(x.device(), {ops::RmsNormWorkspaceNumel(RowCount(x.shape()), x.size(-1))}, rstd.dtype(),
                          MemoryTag::kWorkspace);
      args.dweight = dweight.buffer.Write();
      args.accumulate_dweight = dweight.accumulate;
      args.workspace = workspace.Write();
    }
    ops::RmsNormBackward(args);
    if (dx.defined()) AddInputGrads(ctx, dx);
  }

 private:
  Saved x_, weight_, rstd_;
  bool fused_;
};

class LayerNormNode final : public Node {
 public:
  // x is what was normalised.
  LayerNormNode(Saved x, const Input& weight, const Input& bias, const Tensor& mean, const Tensor& rstd, bool fused)
      : x_(std::move(x)), weight_(weight), mean_(mean), rstd_(rstd), fused_(fused), bias_is_param_(bias.is_param()) {}
  const char* name() const override { return "layer_norm"; }

  void Backward(BackwardContext& ctx) override {
    const OutputGrads grads(ctx, fused_);
    if (!grads.dy.defined()) return AddInputGrads(ctx, grads.dsum);
    const Tensor x = x_.Get(name()), weight = weight_.Get(name());
    const Tensor mean = mean_.Get(name()), rstd = rstd_.Get(name());
    ops::LayerNormBackwardArgs args{
        .dy = grads.dy.Read(), .x = x.Read(), .weight = weight.Read(), .mean = mean.Read(), .rstd = rstd.Read()};
    Tensor dx, workspace;
    GradTarget dweight, dbias;
    if (grads.dsum.defined()) args.dsum = grads.dsum.Read();
    if (ctx.Needs(kX) || ctx.Needs(kResidual)) {
      dx = EmptyOn(x.device(), x.shape(), x.dtype());
      args.dx = dx.Write();
    }
    if (ctx.Needs(kWeight)) {
      dweight = ctx.Target(kWeight, weight.shape(), weight.dtype());
      args.dweight = dweight.buffer.Write();
      args.accumulate_dweight = dweight.accumulate;
    }
    if (ctx.Needs(kBias)) {
      // A tensor may be weight and bias at once, and two targets of one slot must not be held together.
      dbias = bias_is_param_ ? ctx.Target(kBias, weight.shape(), weight.dtype())
                             : GradTarget{EmptyOn(x.device(), weight.shape(), weight.dtype()), false};
      args.dbias = dbias.buffer.Write();
      args.accumulate_dbias = dbias.accumulate;
    }
    if (ctx.Needs(kWeight) || ctx.Needs(kBias)) {
      workspace = EmptyOn(x.device(), {ops::LayerNormWorkspaceNumel(RowCount(x.shape()), x.size(-1))}, rstd.dtype(),
                          MemoryTag::kWorkspace);
      args.workspace = workspace.Write();
    }
    ops::LayerNormBackward(args);
    dweight = {};
    if (ctx.Needs(kBias) && !bias_is_param_) ctx.AddGrad(kBias, dbias.buffer);
    if (dx.defined()) AddInputGrads(ctx, dx);
  }

 private:
  Saved x_, weight_, mean_, rstd_;
  bool fused_, bias_is_param_;
};

void CheckRank(const char* op, const Tensor& x) {
  if (x.rank() == 0) throw Error(Str(op, ": x must have at least one dimension"));
}

Tensor Statistic(const Tensor& x) { return EmptyOn(x.device(), {RowCount(x.shape())}, AccumulationType(x.dtype())); }

SumAndNorm RunRmsNorm(const Input& x, const Input& residual, const Input& weight, double eps) {
  const Tensor x_data = x.Data(), weight_data = weight.Data();
  CheckRank("rms_norm", x_data);
  const bool fused = residual.present();
  Tensor y = EmptyLike(x_data), sum;
  const Tensor rstd = Statistic(x_data);
  ops::RmsNormForwardArgs args{
      .x = x_data.Read(), .weight = weight_data.Read(), .y = y.Write(), .rstd = rstd.Write(), .eps = eps};
  Tensor residual_data;
  if (fused) {
    residual_data = residual.Data();
    sum = EmptyLike(x_data);
    args.residual = residual_data.Read();
    args.sum = sum.Write();
  }
  ops::RmsNormForward(args);
  const Input bias;
  if (Tape* tape = RecordingTape({&x, &weight, &bias, &residual})) {
    auto node = std::make_unique<RmsNormNode>(fused ? Saved(sum) : Saved(x), weight, rstd, fused);
    if (fused) {
      tape->Record(std::move(node), {&x, &weight, &bias, &residual}, {&sum, &y});
    } else {
      tape->Record(std::move(node), {&x, &weight}, {&y});
    }
  }
  return {sum, y};
}

SumAndNorm RunLayerNorm(const Input& x, const Input& residual, const Input& weight, const Input& bias, double eps) {
  const Tensor x_data = x.Data(), weight_data = weight.Data();
  CheckRank("layer_norm", x_data);
  const bool fused = residual.present();
  Tensor y = EmptyLike(x_data), sum;
  const Tensor mean = Statistic(x_data), rstd = Statistic(x_data);
  ops::LayerNormForwardArgs args{.x = x_data.Read(),
                                 .weight = weight_data.Read(),
                                 .y = y.Write(),
                                 .mean = mean.Write(),
                                 .rstd = rstd.Write(),
                                 .eps = eps};
  Tensor bias_data, residual_data;
  if (bias.present()) {
    bias_data = bias.Data();
    args.bias = bias_data.Read();
  }
  if (fused) {
    residual_data = residual.Data();
    sum = EmptyLike(x_data);
    args.residual = residual_data.Read();
    args.sum = sum.Write();
  }
  ops::LayerNormForward(args);
  if (Tape* tape = RecordingTape({&x, &weight, &bias, &residual})) {
    auto node = std::make_unique<LayerNormNode>(fused ? Saved(sum) : Saved(x), weight, bias, mean, rstd, fused);
    if (fused) {
      tape->Record(std::move(node), {&x, &weight, &bias, &residual}, {&sum, &y});
    } else {
      tape->Record(std::move(node), {&x, &weight, &bias}, {&y});
    }
  }
  return {sum, y};
}

const Input& Required(const char* op, const Input& residual) {
  if (!residual.present()) throw Error(Str(op, ": residual is absent; use the plain norm"));
  return residual;
}

}  // namespace

Tensor RmsNorm(const Input& x, const Input& weight, double eps) { return RunRmsNorm(x, Input(), weight, eps).normed; }

Tensor LayerNorm(const Input& x, const Input& weight, const Input& bias, double eps) {
  return RunLayerNorm(x, Input(), weight, bias, eps).normed;
}

SumAndNorm AddRmsNorm(const Input& x, const Input& residual, const Input& weight, double eps) {
  return RunRmsNorm(x, Required("rms_norm", residual), weight, eps);
}

SumAndNorm AddLayerNorm(const Input& x, const Input& residual, const Input& weight, const Input& bias, double eps) {
  return RunLayerNorm(x, Required("layer_norm", residual), weight, bias, eps);
}

}  // namespace tessera
