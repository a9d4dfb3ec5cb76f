// SPDX-License-Identifier: Apache-2.0
#include "autograd/norm.h"

#include "autograd/tape.h"
#include "tensor/ops/rms_norm.h"

namespace tessera {
namespace {

int64_t RowCount(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

class RmsNormNode final : public Node {
 public:
  RmsNormNode(const Input& x, const Input& weight, const Tensor& rstd) : x_(x), weight_(weight), rstd_(rstd) {}
  const char* name() const override { return "rms_norm"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor x = x_.Get(name()), weight = weight_.Get(name()), rstd = rstd_.Get(name());
    ops::RmsNormBackwardArgs args{
        .dy = ctx.OutputGrad().Read(), .x = x.Read(), .weight = weight.Read(), .rstd = rstd.Read()};
    Tensor dx, workspace;
    GradTarget dweight;
    if (ctx.Needs(0)) {
      dx = EmptyOn(x.device(), x.shape(), x.dtype());
      args.dx = dx.Write();
    }
    if (ctx.Needs(1)) {
      dweight = ctx.Target(1, weight.shape(), weight.dtype());
      workspace = EmptyOn(x.device(), {ops::RmsNormWorkspaceNumel(RowCount(x), x.size(-1))}, rstd.dtype(),
                          MemoryTag::kWorkspace);
      args.dweight = dweight.buffer.Write();
      args.accumulate_dweight = dweight.accumulate;
      args.workspace = workspace.Write();
    }
    ops::RmsNormBackward(args);
    if (ctx.Needs(0)) ctx.AddGrad(0, dx);
  }

 private:
  Saved x_, weight_, rstd_;
};

}  // namespace

Tensor RmsNorm(const Input& x, const Input& weight, double eps) {
  const Tensor x_data = x.Data(), weight_data = weight.Data();
  if (x_data.rank() == 0) throw Error("rms_norm: x must have at least one dimension");
  Tensor y = EmptyLike(x_data);
  const Tensor rstd = EmptyOn(x_data.device(), {RowCount(x_data)}, AccumulationType(x_data.dtype()));
  ops::RmsNormForward(
      {.x = x_data.Read(), .weight = weight_data.Read(), .y = y.Write(), .rstd = rstd.Write(), .eps = eps});
  if (Tape* tape = RecordingTape({&x, &weight})) {
    tape->Record(std::make_unique<RmsNormNode>(x, weight, rstd), {&x, &weight}, {&y});
  }
  return y;
}

}  // namespace tessera
