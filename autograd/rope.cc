// SPDX-License-Identifier: Apache-2.0
#include "autograd/rope.h"

#include "autograd/tape.h"
#include "tensor/ops/rope.h"

namespace tessera {
namespace {

class RopeNode final : public Node {
 public:
  RopeNode(const Tensor& table, int64_t position_offset, int64_t rotated_heads)
      : table_(table), position_offset_(position_offset), rotated_heads_(rotated_heads) {}
  const char* name() const override { return "rope"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& dy = ctx.DenseOutputGrad();
    const Tensor table = table_.Get(name()), dx = EmptyOn(dy.device(), dy.shape(), dy.dtype());
    ops::Rope({.x = dy.Read(),
               .table = table.Read(),
               .y = dx.Write(),
               .position_offset = position_offset_,
               .rotated_heads = rotated_heads_,
               .inverse = true});
    ctx.AddGrad(0, dx);
  }

 private:
  Saved table_;
  int64_t position_offset_, rotated_heads_;
};

}  // namespace

Tensor Rope(const Input& x, const RopeTable& table, int64_t position_offset, int64_t rotated_heads) {
  const Tensor x_data = x.Data();
  if (x_data.rank() != 4) throw Error(Str("rope: x must be (B, T, H, D), got ", x_data));
  const Tensor rows = table.Rows(position_offset + x_data.size(1), AccumulationType(x_data.dtype()), x_data.device());
  Tensor y = EmptyLike(x_data);
  ops::Rope({.x = x_data.Read(),
             .table = rows.Read(),
             .y = y.Write(),
             .position_offset = position_offset,
             .rotated_heads = rotated_heads});
  if (Tape* tape = RecordingTape({&x})) {
    tape->Record(std::make_unique<RopeNode>(rows, position_offset, rotated_heads), {&x}, {&y});
  }
  return y;
}

}  // namespace tessera
