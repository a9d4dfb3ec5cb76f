// SPDX-License-Identifier: Apache-2.0
#include "autograd/embedding.h"

#include "autograd/tape.h"
#include "tensor/ops/embedding.h"

namespace tessera {
namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(const Input& weight, const Tensor& ids) : shape_(weight.shape()), ids_(ids) {}
  const char* name() const override { return "embedding"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.OutputGrad();
    const Tensor ids = ids_.Get(name());
    const GradTarget dweight = ctx.Target(0, shape_, dy.dtype());
    const Tensor workspace = EmptyOn(dy.device(), {ops::EmbeddingWorkspaceNumel(shape_[0], ids.numel())}, DType::kI64,
                                     MemoryTag::kWorkspace);
    ops::EmbeddingBackward({.dy = dy.Read(),
                            .ids = ids.Read(),
                            .dweight = dweight.buffer.Write(),
                            .accumulate = dweight.accumulate,
                            .workspace = workspace.Write()});
  }

 private:
  Shape shape_;
  Saved ids_;
};

}  // namespace

Tensor Embedding(const Input& weight, const Tensor& ids) {
  const Tensor table = weight.Data();
  if (table.rank() != 2) throw Error(Str("embedding: weight must have rank 2, got shape ", table.shape()));
  Shape shape = ids.shape();
  shape.push_back(table.size(1));
  Tensor y = EmptyOn(table.device(), shape, table.dtype());
  ops::EmbeddingForward({.weight = table.Read(), .ids = ids.Read(), .y = y.Write()});
  if (Tape* tape = RecordingTape({&weight})) {
    tape->Record(std::make_unique<EmbeddingNode>(weight, ids), {&weight}, {&y});
  }
  return y;
}

}  // namespace tessera
