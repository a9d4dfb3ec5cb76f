// SPDX-License-Identifier: Apache-2.0
#include "autograd/attention.h"

#include <cmath>

#include "autograd/tape.h"
#include "tensor/ops/attention.h"

namespace tessera {
namespace {

constexpr const char* kOp = "attention";

// What forward made besides y, and with which settings.
struct Result {
  Tensor y, log_sum;
  bool causal;
  double scale;
};

Result RunForward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  const double default_scale = q.size(3) > 0 ? 1 / std::sqrt(static_cast<double>(q.size(3))) : 1;
  const Result result{.y = EmptyOn(q.device(), q.shape(), q.dtype()),
                      .log_sum = EmptyOn(q.device(), {q.size(0), q.size(2), q.size(1)}, AccumulationType(q.dtype())),
                      .causal = options.causal,
                      .scale = options.scale.value_or(default_scale)};
  ops::AttentionForward({.q = q.Read(),
                         .k = k.Read(),
                         .v = v.Read(),
                         .y = result.y.Write(),
                         .log_sum = result.log_sum.Write(),
                         .causal = result.causal,
                         .scale = result.scale});
  return result;
}

struct Heads {
  Tensor q, k, v;
};

void RunBackward(const Heads& in, const Tensor& dy, const Tensor& y, const Tensor& log_sum, bool causal, double scale,
                 const Heads& grads) {
  const Tensor workspace = EmptyLike(log_sum, MemoryTag::kWorkspace);
  ops::AttentionBackward({.dy = dy.Read(),
                          .q = in.q.Read(),
                          .k = in.k.Read(),
                          .v = in.v.Read(),
                          .y = y.Read(),
                          .log_sum = log_sum.Read(),
                          .dq = grads.q.Write(),
                          .dk = grads.k.Write(),
                          .dv = grads.v.Write(),
                          .workspace = workspace.Write(),
                          .causal = causal,
                          .scale = scale});
}

class AttentionNode final : public Node {
 public:
  AttentionNode(const Input& q, const Input& k, const Input& v, const Result& result)
      : q_(q), k_(k), v_(v), y_(result.y), log_sum_(result.log_sum), causal_(result.causal), scale_(result.scale) {}
  const char* name() const override { return kOp; }

  void Backward(BackwardContext& ctx) override {
    const Heads in{q_.Get(name()), k_.Get(name()), v_.Get(name())};
    const Heads grads{EmptyOn(in.q.device(), in.q.shape(), in.q.dtype()),
                      EmptyOn(in.k.device(), in.k.shape(), in.k.dtype()),
                      EmptyOn(in.v.device(), in.v.shape(), in.v.dtype())};
    RunBackward(in, ctx.DenseOutputGrad(), y_.Get(name()), log_sum_.Get(name()), causal_, scale_, grads);
    ctx.AddGrad(0, grads.q);
    ctx.AddGrad(1, grads.k);
    ctx.AddGrad(2, grads.v);
  }

 private:
  Saved q_, k_, v_, y_, log_sum_;
  bool causal_;
  double scale_;
};

// The parts of a packed tensor as views.
Heads Unpack(const Tensor& packed, int64_t q_heads, int64_t kv_heads) {
  const int64_t heads = q_heads + 2 * kv_heads;
  if (packed.rank() != 3) throw Error(Str(kOp, ": qkv must be (B, T, (Hq + 2 Hkv) * D), got ", packed));
  if (q_heads <= 0 || kv_heads <= 0 || packed.size(2) % heads != 0) {
    throw Error(Str(kOp, ": ", q_heads, " query heads and 2 x ", kv_heads, " key and value heads do not divide the ",
                    packed.size(2), " features of qkv"));
  }
  Layout layout;
  if (!packed.layout().TryReshape({packed.size(0), packed.size(1), heads, packed.size(2) / heads}, &layout)) {
    throw Error(Str(kOp, ": qkv must have a dense last dimension, got ", packed.layout(), "; use Contiguous()"));
  }
  return {packed.WithLayout(layout.Narrow(2, 0, q_heads)), packed.WithLayout(layout.Narrow(2, q_heads, kv_heads)),
          packed.WithLayout(layout.Narrow(2, q_heads + kv_heads, kv_heads))};
}

// (B, T, H, D) <-> (B, T, H * D)
Tensor WithShape(const Tensor& x, const Shape& shape) {
  Layout layout;
  if (!x.layout().TryReshape(shape, &layout)) return WithShape(CopyTo(x, x.dtype()), shape);
  return x.WithLayout(layout);
}

class AttentionPackedNode final : public Node {
 public:
  AttentionPackedNode(const Input& qkv, const Result& result, int64_t q_heads, int64_t kv_heads)
      : qkv_(qkv),
        y_(result.y),
        log_sum_(result.log_sum),
        causal_(result.causal),
        scale_(result.scale),
        q_heads_(q_heads),
        kv_heads_(kv_heads) {}
  const char* name() const override { return kOp; }

  void Backward(BackwardContext& ctx) override {
    const Tensor qkv = qkv_.Get(name()), y = y_.Get(name());
    const Tensor dqkv = EmptyOn(qkv.device(), qkv.shape(), qkv.dtype());
    RunBackward(Unpack(qkv, q_heads_, kv_heads_), WithShape(ctx.DenseOutputGrad(), y.shape()), y, log_sum_.Get(name()),
                causal_, scale_, Unpack(dqkv, q_heads_, kv_heads_));
    ctx.AddGrad(0, dqkv);
  }

 private:
  Saved qkv_, y_, log_sum_;
  bool causal_;
  double scale_;
  int64_t q_heads_, kv_heads_;
};

}  // namespace

Tensor Attention(const Input& q, const Input& k, const Input& v, const AttentionOptions& options) {
  const Tensor q_data = q.Data(), k_data = k.Data(), v_data = v.Data();
  if (q_data.rank() != 4) throw Error(Str(kOp, ": q must be (B, T, H, D), got ", q_data));
  const Result result = RunForward(q_data, k_data, v_data, options);
  Tensor y = result.y;
  if (Tape* tape = RecordingTape({&q, &k, &v})) {
    tape->Record(std::make_unique<AttentionNode>(q, k, v, result), {&q, &k, &v}, {&y});
  }
  return y;
}

Tensor AttentionPacked(const Input& qkv, int64_t q_heads, int64_t kv_heads, const AttentionOptions& options) {
  const Tensor data = qkv.Data();
  const Heads in = Unpack(data, q_heads, kv_heads);
  const Result result = RunForward(in.q, in.k, in.v, options);
  Tensor y = WithShape(result.y, {data.size(0), data.size(1), q_heads * in.q.size(3)});
  if (Tape* tape = RecordingTape({&qkv})) {
    tape->Record(std::make_unique<AttentionPackedNode>(qkv, result, q_heads, kv_heads), {&qkv}, {&y});
  }
  return y;
}

}  // namespace tessera
