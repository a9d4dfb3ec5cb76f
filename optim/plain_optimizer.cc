// SPDX-License-Identifier: Apache-2.0
#include "optim/plain_optimizer.h"

namespace tessera::optim {

PlainOptimizer::PlainOptimizer(std::unique_ptr<Optimizer> optimizer, const std::vector<ParamRange>& ranges)
    : optimizer_(std::move(optimizer)), scalars_(optimizer_->start_values()) {
  for (const ParamRange& range : ranges) {
    const DType state_dtype = AccumulationType(range.param.dtype());
    RangeState state;
    if (IsLowPrecision(range.param.dtype())) state.master = CopyTo(range.param, state_dtype, MemoryTag::kStates);
    for (int i = 0; i < optimizer_->state_count(); ++i) {
      state.states.push_back(Zeros(range.param.shape(), state_dtype, MemoryTag::kStates));
    }
    ranges_.push_back(std::move(state));
  }
}

void PlainOptimizer::Step(const std::vector<ParamRange>& ranges, const PlainStepOptions& options) {
  if (ranges.size() != ranges_.size()) {
    throw Error(Str("optimizer: Step got ", ranges.size(), " ranges, it was made for ", ranges_.size()));
  }
  norm_.Clear();
  for (const ParamRange& range : ranges) norm_.Add(range.grad.Read());
  scalars_.SetLossScale(options.loss_weight);
  BeginStep(scalars_, {.sum_squares = norm_.sum_squares(), .max_norm = options.max_grad_norm});
  for (size_t i = 0; i < ranges.size(); ++i) {
    const ParamRange& range = ranges[i];
    const RangeState& state = ranges_[i];
    FlatSpan span{.master = state.master.defined() ? state.master.Write() : range.param.Write(),
                  .gradient = range.grad.Read(),
                  .decay = range.decay};
    if (state.master.defined()) span.low_precision = range.param.Write();
    for (size_t k = 0; k < state.states.size(); ++k) span.states[k] = state.states[k].Write();
    optimizer_->Update(span, scalars_);
  }
}

int64_t PlainOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const RangeState& range : ranges_) {
    if (range.master.defined()) bytes += range.master.bytes();
    for (const Tensor& state : range.states) bytes += state.bytes();
  }
  return bytes;
}

}  // namespace tessera::optim
