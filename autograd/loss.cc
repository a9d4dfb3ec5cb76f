// SPDX-License-Identifier: Apache-2.0
#include "autograd/loss.h"

#include <algorithm>

#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/gemm.h"
#include "tensor/ops/scale.h"

namespace tessera {
namespace {

Tensor Scalar(const Tensor& like, DType dtype) { return EmptyOn(like.device(), {}, dtype); }

Loss Total(const Tensor& row_loss, const Tensor& targets, int64_t ignore_index) {
  const Loss loss{Scalar(row_loss, row_loss.dtype()), Scalar(row_loss, row_loss.dtype())};
  ops::CrossEntropyTotal({.loss = row_loss.Read(),
                          .targets = targets.Read(),
                          .sum = loss.sum.Write(),
                          .weight = loss.weight.Write(),
                          .ignore_index = ignore_index});
  return loss;
}

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const Input& logits, const Tensor& targets, const Tensor& log_sum,
                   const CrossEntropyOptions& options)
      : logits_(logits), targets_(targets), log_sum_(log_sum), options_(options) {}
  const char* name() const override { return "cross_entropy"; }

  void Backward(BackwardContext& ctx) override {
    const Tensor logits = logits_.Get(name()), targets = targets_.Get(name()), log_sum = log_sum_.Get(name());
    const Tensor dlogits = EmptyOn(logits.device(), logits.shape(), logits.dtype());
    ops::CrossEntropyBackward({.logits = logits.Read(),
                               .targets = targets.Read(),
                               .log_sum = log_sum.Read(),
                               .dsum = ctx.OutputGrad().Read(),
                               .dlogits = dlogits.Write(),
                               .ignore_index = options_.ignore_index,
                               .valid_classes = options_.valid_classes});
    ctx.AddGrad(0, dlogits);
  }

 private:
  Saved logits_, targets_, log_sum_;
  CrossEntropyOptions options_;
};

// ---- the fused head ----

constexpr const char* kHead = "linear_cross_entropy";
enum : int { kX, kWeight };

// x as one matrix of rows.
Tensor AsMatrix(const Tensor& x) {
  if (x.rank() == 0) throw Error(Str(kHead, ": x must have at least one dimension"));
  Layout matrix;
  if (!x.layout().TryReshape({RowCount(x.shape()), x.size(-1)}, &matrix)) {
    throw Error(Str(kHead, ": the rows of x are not one matrix (", x.layout(), "); use Contiguous()"));
  }
  return x.WithLayout(matrix);
}

Tensor Rows(const Tensor& x, int64_t begin, int64_t count) { return x.WithLayout(x.layout().Narrow(0, begin, count)); }

Tensor Transposed(const Tensor& x) { return x.WithLayout(x.layout().Transpose(0, 1)); }

// What forward leaves behind: the gradients for a gradient of 1 at the sum. The weight's is finished, or, where all
// rows were one chunk, still the product of the logits' gradient and x, which then goes straight into its target.
struct HeadGradients {
  Tensor dx;       // x's shape
  Tensor dweight;  // (classes, C), accumulation type
  Tensor dlogits;  // (rows, classes)
  Saved x;         // with dlogits
};

class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(HeadGradients gradients, const Shape& weight_shape, DType weight_dtype)
      : gradients_(std::move(gradients)), weight_shape_(weight_shape), weight_dtype_(weight_dtype) {}
  const char* name() const override { return kHead; }

  void Backward(BackwardContext& ctx) override {
    const Tensor& incoming = ctx.OutputGrad();
    if (ctx.Needs(kWeight)) CommitWeight(ctx, incoming);
    if (ctx.Needs(kX)) {
      const Tensor& dx = gradients_.dx;
      ops::Scale({.x = dx.Read(), .out = dx.Write(), .factor_tensor = incoming.Read()});
      ctx.AddGrad(kX, dx);
    }
  }

 private:
  void CommitWeight(BackwardContext& ctx, const Tensor& incoming) {
    const GradTarget target = ctx.Target(kWeight, weight_shape_, weight_dtype_);
    const Tensor &dweight = gradients_.dweight, &dlogits = gradients_.dlogits;
    const int64_t classes = dweight.defined() ? dweight.size(0) : dlogits.size(1);
    const Tensor used = Rows(target.buffer, 0, classes),
                 padding = Rows(target.buffer, classes, weight_shape_[0] - classes);
    if (dweight.defined()) {
      ops::Scale({.x = dweight.Read(),
                  .out = used.Write(),
                  .factor_tensor = incoming.Read(),
                  .accumulate = target.accumulate});
    } else {
      const Tensor x = AsMatrix(gradients_.x.Get(name())), scaled = EmptyLike(x, MemoryTag::kWorkspace);
      ops::Scale({.x = x.Read(), .out = scaled.Write(), .factor_tensor = incoming.Read()});
      ops::Gemm(
          {.a = Transposed(dlogits).Read(), .b = scaled.Read(), .c = used.Write(), .accumulate = target.accumulate});
    }
    if (!target.accumulate) ops::Fill({.out = padding.Write(), .value = 0});
  }

  HeadGradients gradients_;
  Shape weight_shape_;
  DType weight_dtype_;
};

Tensor Flat(const Tensor& targets) {
  Layout flat;
  if (targets.layout().TryReshape({targets.numel()}, &flat)) return targets.WithLayout(flat);
  return Flat(CopyTo(targets, targets.dtype(), MemoryTag::kWorkspace));
}

// How many classes there are.
int64_t CheckHead(const Tensor& x, const Input& weight, const Tensor& targets,
                  const LinearCrossEntropyOptions& options) {
  if (weight.shape().rank() != 2) throw Error(Str(kHead, ": weight must be (V, C), got shape ", weight.shape()));
  if (x.size(-1) != weight.shape()[1]) {
    throw Error(Str(kHead, ": x has ", x.size(-1), " features, weight wants ", weight.shape()[1]));
  }
  if (x.dtype() != weight.dtype()) {
    throw Error(Str(kHead, ": x is ", Name(x.dtype()), ", weight is ", Name(weight.dtype()), "; they must be equal"));
  }
  const Shape leading(std::span(x.shape().begin(), static_cast<size_t>(x.rank() - 1)));
  if (targets.shape() != leading) {
    throw Error(Str(kHead, ": targets have shape ", targets.shape(), ", x has ", x.shape(), "; expected ", leading));
  }
  const int64_t vocabulary = weight.shape()[0];
  if (options.valid_classes < -1 || options.valid_classes > vocabulary) {
    throw Error(Str(kHead, ": valid_classes is ", options.valid_classes, ", weight has ", vocabulary, " rows"));
  }
  return options.valid_classes < 0 ? vocabulary : options.valid_classes;
}

}  // namespace

double Loss::Mean() const {
  const double count = weight.Item();
  return count > 0 ? sum.Item() / count : 0;
}

Loss CrossEntropy(const Input& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  const Tensor logits_data = logits.Data();
  const DType dtype = AccumulationType(logits_data.dtype());
  const Shape rows{RowCount(logits_data.shape())};
  const Tensor row_loss = EmptyOn(logits_data.device(), rows, dtype, MemoryTag::kWorkspace);
  const Tensor log_sum = EmptyOn(logits_data.device(), rows, dtype);
  ops::CrossEntropyRows({.logits = logits_data.Read(),
                         .targets = targets.Read(),
                         .loss = row_loss.Write(),
                         .log_sum = log_sum.Write(),
                         .ignore_index = options.ignore_index,
                         .valid_classes = options.valid_classes});
  Loss loss = Total(row_loss, targets, options.ignore_index);
  if (Tape* tape = RecordingTape({&logits})) {
    tape->Record(std::make_unique<CrossEntropyNode>(logits, targets, log_sum, options), {&logits}, {&loss.sum});
  }
  return loss;
}

Loss LinearCrossEntropy(const Input& x, const Input& weight, const Tensor& targets,
                        const LinearCrossEntropyOptions& options) {
  const Tensor x_data = x.Data(), matrix = AsMatrix(x_data);
  const int64_t classes = CheckHead(x_data, weight, targets, options), rows = matrix.size(0), width = matrix.size(1);
  const Tensor used = Rows(weight.Data(), 0, classes);
  ops::CheckTargets(kHead, targets.Read(), classes, options.ignore_index);
  const Tensor flat_targets = Flat(targets);
  const DType dtype = AccumulationType(x_data.dtype());
  const Device device = x_data.device();

  Tape* tape = RecordingTape({&x, &weight});
  const bool needs_dx = tape != nullptr && x.tracked(), needs_dweight = tape != nullptr && weight.tracked();
  const int64_t row_bytes = std::max<int64_t>(classes * ItemSize(dtype), 1);
  const int64_t chunk = std::clamp<int64_t>(options.chunk_bytes / row_bytes, 1, std::max<int64_t>(rows, 1));
  // 16-bit x is not multiplied by the incoming gradient: a loss scale could take it out of range.
  const bool keeps_dlogits = needs_dweight && chunk >= rows && x_data.dtype() == dtype;

  HeadGradients gradients;
  if (needs_dx) gradients.dx = EmptyLike(x_data);
  if (needs_dweight && !keeps_dlogits) gradients.dweight = EmptyOn(device, {classes, width}, dtype);
  const Tensor row_loss = EmptyOn(device, {rows}, dtype, MemoryTag::kWorkspace);
  const Tensor logits =
      EmptyOn(device, {chunk, classes}, dtype, keeps_dlogits ? MemoryTag::kActivations : MemoryTag::kWorkspace);
  if (keeps_dlogits) {
    gradients.dlogits = Rows(logits, 0, rows);
    gradients.x = Saved(x);
  }
  const Tensor dx_matrix = needs_dx ? AsMatrix(gradients.dx) : Tensor();
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const Tensor part = Rows(logits, 0, count), x_part = Rows(matrix, begin, count);
    ops::Gemm({.a = x_part.Read(), .b = Transposed(used).Read(), .c = part.Write()});
    ops::CrossEntropyRowsArgs args{.logits = part.Read(),
                                   .targets = Rows(flat_targets, begin, count).Read(),
                                   .loss = Rows(row_loss, begin, count).Write(),
                                   .ignore_index = options.ignore_index};
    if (tape != nullptr) args.gradient = part.Write();
    ops::CrossEntropyRows(args);
    if (needs_dx) ops::Gemm({.a = part.Read(), .b = used.Read(), .c = Rows(dx_matrix, begin, count).Write()});
    if (gradients.dweight.defined()) {
      ops::Gemm(
          {.a = Transposed(part).Read(), .b = x_part.Read(), .c = gradients.dweight.Write(), .accumulate = begin > 0});
    }
  }
  if (rows == 0 && gradients.dweight.defined()) ops::Fill({.out = gradients.dweight.Write(), .value = 0});

  Loss loss = Total(row_loss, flat_targets, options.ignore_index);
  if (tape != nullptr) {
    tape->Record(std::make_unique<LinearCrossEntropyNode>(std::move(gradients), weight.shape(), weight.dtype()),
                 {&x, &weight}, {&loss.sum});
  }
  return loss;
}

Tensor MeanSeed(const Loss& loss, double scale) {
  const Tensor seed = Scalar(loss.weight, loss.weight.dtype());
  ops::MeanSeed({.weight = loss.weight.Read(), .seed = seed.Write(), .scale = scale});
  return seed;
}

void Backward(Tape& tape, const Loss& loss) { tape.Backward(loss.sum, MeanSeed(loss)); }

void Backward(const Loss& loss) {
  Tape* tape = internal::State().tape;
  if (tape == nullptr) throw Error("backward: no tape is open on this thread; open a Tape before forward");
  Backward(*tape, loss);
}

}  // namespace tessera
