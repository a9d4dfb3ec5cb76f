// SPDX-License-Identifier: Apache-2.0
#include "autograd/dropout.h"

#include "autograd/tape.h"
#include "tensor/ops/dropout.h"

namespace tessera {
namespace {

class DropoutNode final : public Node {
 public:
  DropoutNode(double p, RngKey key) : p_(p), key_(key) {}
  const char* name() const override { return "dropout"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const Tensor dx = EmptyLike(dy);
    ops::Dropout({.x = dy.Read(), .y = dx.Write(), .p = p_, .key = key_});
    ctx.AddGrad(0, dx);
  }

 private:
  double p_;
  RngKey key_;
};

}  // namespace

Tensor Dropout(const Input& x, double p, RngKey key) {
  const Tensor x_data = x.Data();
  if (p == 0 && !x.is_param()) return x_data;
  Tensor y = EmptyLike(x_data);
  ops::Dropout({.x = x_data.Read(), .y = y.Write(), .p = p, .key = key});
  if (Tape* tape = RecordingTape({&x})) tape->Record(std::make_unique<DropoutNode>(p, key), {&x}, {&y});
  return y;
}

}  // namespace tessera
