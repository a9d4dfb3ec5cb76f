// SPDX-License-Identifier: Apache-2.0
#include "autograd/param.h"

#include "tensor/ops/fill.h"

namespace tessera {
namespace {

// `view` (relative to a parameter) seen from the start of the storage that `whole` lies in.
Tensor ViewOf(const Tensor& whole, const Layout& view) {
  return whole.WithLayout(Layout(view.shape(), view.strides(), whole.layout().offset() + view.offset()));
}

}  // namespace

ParamRef ParamRef::WithLayout(const Layout& layout) const {
  ParamRef result = *this;
  result.layout_ = layout;
  return result;
}

ParamRef ParamRef::Reshape(const Shape& shape) const {
  Layout result;
  if (!layout_.TryReshape(ResolveShape(shape, layout_.numel(), "reshape"), &result)) {
    throw Error(Str("reshape: this view of parameter '", source_->path(), "' (", layout_, ") has no reshape to ", shape,
                    " without a copy"));
  }
  return WithLayout(result);
}

Tensor ParamRef::Data() const {
  Tensor whole = source_->Data();
  return is_whole() ? whole : ViewOf(whole, layout_);
}

GradTarget ParamRef::NextGradTarget() const {
  GradTarget target = source_->NextGradTarget();
  if (is_whole()) return target;
  const bool covers = layout_.numel() == source_->shape().numel() && !layout_.HasOverlap();
  if (!target.accumulate && !covers) {
    ops::Fill({.out = target.buffer.Write(), .value = 0});
    target.accumulate = true;
  }
  return {ViewOf(target.buffer, layout_), target.accumulate};
}

const Shape& Input::shape() const {
  if (is_param()) return param_.shape();
  if (tensor_ == nullptr) throw Error("input: an absent input has no shape");
  return tensor_->shape();
}

DType Input::dtype() const {
  if (is_param()) return param_.source()->dtype();
  if (tensor_ == nullptr) throw Error("input: an absent input has no dtype");
  return tensor_->dtype();
}

bool Input::tracked() const {
  return is_param() ? param_.source()->requires_grad() : tensor_ != nullptr && tensor_->tracked();
}

Tensor Input::Data() const {
  if (is_param()) return param_.Data();
  if (tensor_ == nullptr) throw Error("input: an undefined tensor was passed where data is needed");
  return *tensor_;
}

}  // namespace tessera
