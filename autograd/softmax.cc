// SPDX-License-Identifier: Apache-2.0
#include "autograd/softmax.h"

#include "autograd/tape.h"
#include "tensor/ops/softmax.h"

namespace tessera {
namespace {

class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(const Tensor& y, bool log) : y_(y), log_(log) {}
  const char* name() const override { return log_ ? "log_softmax" : "softmax"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor y = y_.Get(name());
    const Tensor dx = EmptyOn(y.device(), y.shape(), y.dtype());
    ops::SoftmaxBackward({.dy = ctx.DenseOutputGrad().Read(), .y = y.Read(), .dx = dx.Write(), .log = log_});
    ctx.AddGrad(0, dx);
  }

 private:
  Saved y_;
  bool log_;
};

Tensor Run(const Input& x, bool log) {
  const Tensor x_data = x.Data();
  Tensor y = EmptyLike(x_data);
  ops::SoftmaxForward({.x = x_data.Read(), .y = y.Write(), .log = log});
  if (Tape* tape = RecordingTape({&x})) tape->Record(std::make_unique<SoftmaxNode>(y, log), {&x}, {&y});
  return y;
}

}  // namespace

Tensor Softmax(const Input& x) { return Run(x, false); }
Tensor LogSoftmax(const Input& x) { return Run(x, true); }

}  // namespace tessera
