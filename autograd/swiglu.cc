// SPDX-License-Identifier: Apache-2.0
#include "autograd/swiglu.h"

#include "autograd/tape.h"
#include "tensor/ops/swiglu.h"

namespace tessera {
namespace {

class SwiGluNode final : public Node {
 public:
  SwiGluNode(const Input& gate, const Input& up) : gate_(gate), up_(up) {}
  const char* name() const override { return "swiglu"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor gate = gate_.Get(name()), up = up_.Get(name());
    const Tensor dgate = EmptyOn(gate.device(), gate.shape(), gate.dtype());
    const Tensor dup = EmptyOn(up.device(), up.shape(), up.dtype());
    ops::SwiGluBackward({.dy = ctx.OutputGrad().Read(),
                         .gate = gate.Read(),
                         .up = up.Read(),
                         .dgate = dgate.Write(),
                         .dup = dup.Write()});
    ctx.AddGrad(0, dgate);
    ctx.AddGrad(1, dup);
  }

 private:
  Saved gate_, up_;
};

}  // namespace

Tensor SwiGlu(const Input& gate, const Input& up) {
  const Tensor gate_data = gate.Data(), up_data = up.Data();
  Tensor y = EmptyLike(gate_data);
  ops::SwiGluForward({.gate = gate_data.Read(), .up = up_data.Read(), .y = y.Write()});
  if (Tape* tape = RecordingTape({&gate, &up})) {
    tape->Record(std::make_unique<SwiGluNode>(gate, up), {&gate, &up}, {&y});
  }
  return y;
}

}  // namespace tessera
