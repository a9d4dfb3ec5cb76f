// SPDX-License-Identifier: Apache-2.0
#include "nn/resident_manager.h"

#include "tensor/ops/fill.h"

namespace tessera::nn {
namespace {

Tensor Slice(const Tensor& flat, int64_t begin, const Shape& shape) {
  return flat.WithLayout(Layout::Contiguous(shape, flat.layout().offset() + begin));
}

}  // namespace

ResidentManager::ResidentManager(Module& root, const ResidentOptions& options) : root_(root), options_(options) {
  if (!IsFloating(options.dtype) || !IsFloating(options.grad_dtype)) {
    throw Error(Str("resident manager: dtype ", Name(options.dtype), " and grad_dtype ", Name(options.grad_dtype),
                    " must be f32, bf16, f16 or f64"));
  }
  if (options.dtype == DType::kF64) options_.grad_dtype = DType::kF64;
  const std::vector<Unit> units = FindUnits(root, options.units);
  std::vector<std::vector<FlatParamSpec>> specs;
  std::vector<Parameter*> all;
  for (const Unit& unit : units) {
    specs.emplace_back();
    for (Parameter* parameter : unit.parameters) {
      specs.back().push_back({parameter->path(), parameter->numel(), parameter->requires_grad()});
      all.push_back(parameter);
    }
  }
  const FlatLayout layout(specs, /*world_size=*/1, ItemSize(options_.dtype));
  Adopt(root, this);
  for (const FlatUnit& unit : layout.units()) {
    MakeSegment(all, unit.trainable, true);
    MakeSegment(all, unit.frozen, false);
  }
}

ResidentManager::~ResidentManager() {
  // Tensors of the caller may outlive the labels.
  for (auto& [parameter, held] : held_) held.data.storage()->SetLabel(nullptr);
  Adopt(root_, nullptr);
}

void ResidentManager::MakeSegment(const std::vector<Parameter*>& all, const FlatSegment& segment, bool trainable) {
  if (segment.params.empty()) return;
  const Tensor data = Empty({segment.numel}, options_.dtype, MemoryTag::kParams);
  ops::Fill({.out = data.Write(), .value = 0});  // the gaps of alignment are part of the ranges
  labels_.push_back(std::make_unique<FlatBufferLabel>(all, segment, ItemSize(options_.dtype)));
  data.storage()->SetLabel(labels_.back().get());
  Tensor grad;
  if (trainable) {
    grad = Empty({segment.numel}, options_.grad_dtype, MemoryTag::kGrads);
    ops::Fill({.out = grad.Write(), .value = 0});
  }
  for (size_t i = 0; i < segment.params.size(); ++i) {
    const FlatParam& place = segment.params[i];
    const Parameter& parameter = *all[static_cast<size_t>(place.param)];
    const Tensor flat = Slice(data, place.offset, {place.numel});
    FillInit(parameter.init(), options_.seed, parameter.path(), 0, flat);
    Held held{.data = Slice(data, place.offset, parameter.shape()), .grad = {}};
    if (trainable) {
      held.grad = Slice(grad, place.offset, parameter.shape());
      // A range goes on to the next parameter's start, gap included, while weight decay stays the same.
      const int64_t end = i + 1 < segment.params.size() ? segment.params[i + 1].offset : segment.numel;
      const bool joins = i > 0 && ranges_.back().decay == parameter.decay();
      const int64_t begin = joins ? ranges_.back().param.layout().offset() : place.offset;
      const ParamRange range{.first_path = joins ? ranges_.back().first_path : parameter.path(),
                             .param = Slice(data, begin, {end - begin}),
                             .grad = Slice(grad, begin, {end - begin}),
                             .decay = parameter.decay()};
      if (joins) {
        ranges_.back() = range;
      } else {
        ranges_.push_back(range);
      }
    }
    held_.emplace(&parameter, held);
  }
}

ResidentManager::Held& ResidentManager::held(const Parameter& parameter) {
  const auto it = held_.find(&parameter);
  if (it == held_.end()) throw Error(Str("parameter '", parameter.path(), "' is not part of this manager's model"));
  return it->second;
}

const std::vector<ParamRange>& ResidentManager::FinishGradients() {
  for (auto& [parameter, held] : held_) {
    if (held.grad.defined() && !held.written) ops::Fill({.out = held.grad.Write(), .value = 0});
    held.written = false;
  }
  return ranges_;
}

Tensor ResidentManager::Gradient(const Parameter& parameter) const {
  const auto it = held_.find(&parameter);
  if (it == held_.end() || !it->second.grad.defined()) {
    throw Error(Str("parameter '", parameter.path(), "' has no gradient: it is frozen or of another model"));
  }
  return it->second.grad;
}

Tensor ResidentManager::Data(Parameter& parameter) { return held(parameter).data; }

GradTarget ResidentManager::NextGradTarget(Parameter& parameter) {
  Held& entry = held(parameter);
  const bool accumulate = entry.written;
  entry.written = true;
  return {entry.grad, accumulate};
}

void ResidentManager::GradReady(Parameter& parameter) {
  Held& entry = held(parameter);
  if (entry.written) return;
  ops::Fill({.out = entry.grad.Write(), .value = 0});
  entry.written = true;
}

void ResidentManager::Edit(Parameter& parameter, FunctionRef<void(Tensor&)> edit) {
  Tensor data = held(parameter).data;
  edit(data);
}

void ResidentManager::OnDiscard(bool in_backward) noexcept {
  // Half-written gradients are worth nothing; a tape thrown away after forward has written none.
  if (!in_backward) return;
  for (auto& [parameter, held] : held_) held.written = false;
}

}  // namespace tessera::nn
