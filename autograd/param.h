// SPDX-License-Identifier: Apache-2.0
// How autograd sees a parameter: never as a tensor it may keep, always as a source to ask.
//
// A parameter may be one tile of a sharded whole. Its data exists only while somebody gathers it, and its gradient goes to
// a buffer that its manager chooses. So an op saves a ParamRef, asks for the data again in backward, and writes the
// gradient where GradTarget says.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace tessera {

// Where a gradient is to be written, and whether it adds to what is there.
struct GradTarget {
  Tensor buffer;
  bool accumulate = false;
};

class ParamSource {
 public:
  virtual ~ParamSource() = default;

  virtual const std::string& path() const = 0;
  virtual const Shape& shape() const = 0;
  virtual DType dtype() const = 0;
  virtual bool requires_grad() const = 0;

  // The full data, contiguous. Throws Error with the path when it is not gathered and may not be now.
  virtual Tensor Data() = 0;
  // The buffer for the whole parameter's gradient, contiguous, in the manager's dtype. Whoever asks writes. The first
  // asking of a backward pass may get accumulate = false; every later one gets true.
  virtual GradTarget NextGradTarget() = 0;
  // All uses of this parameter in this backward pass are done, whether or not a gradient reached them.
  virtual void GradReady() = 0;

 private:
  friend class Tape;
  int32_t pending_uses_ = 0;  // nodes on the root tape whose backward still has to run
};

// A parameter, or a view of one: a value that refers and holds no data.
class ParamRef {
 public:
  ParamRef() = default;
  explicit ParamRef(ParamSource* source) : source_(source), layout_(Layout::Contiguous(source->shape())) {}

  ParamSource* source() const { return source_; }
  const Layout& layout() const { return layout_; }  // relative to the parameter's first element
  const Shape& shape() const { return layout_.shape(); }
  bool is_whole() const { return layout_.offset() == 0 && layout_ == Layout::Contiguous(source_->shape()); }

  ParamRef WithLayout(const Layout& layout) const;
  ParamRef Transpose(int dim0, int dim1) const { return WithLayout(layout_.Transpose(dim0, dim1)); }
  ParamRef Narrow(int dim, int64_t start, int64_t length) const {
    return WithLayout(layout_.Narrow(dim, start, length));
  }
  ParamRef Reshape(const Shape& shape) const;

  Tensor Data() const;  // the view of the gathered data
  // The view's part of the gradient buffer. The first one through a view that does not cover the parameter zero-fills
  // the whole buffer.
  GradTarget NextGradTarget() const;

 private:
  ParamSource* source_ = nullptr;
  Layout layout_;
};

// What a differentiable function takes: a tensor, a parameter, or nothing (an absent bias). Borrows the tensor, so use it
// as a function parameter only.
class Input {
 public:
  Input() = default;
  Input(const Tensor& tensor) : tensor_(tensor.defined() ? &tensor : nullptr) {}  // NOLINT: implicit on purpose
  Input(const ParamRef& param) : param_(param) {}                                 // NOLINT: implicit on purpose

  bool present() const { return tensor_ != nullptr || is_param(); }
  bool is_param() const { return param_.source() != nullptr; }
  const ParamRef& param() const { return param_; }
  const Tensor* tensor() const { return tensor_; }
  const Shape& shape() const;
  DType dtype() const;
  // Wants a gradient: a tracked tensor, or a parameter that is not frozen.
  bool tracked() const;
  Tensor Data() const;  // gathers a parameter; throws on an absent input

 private:
  const Tensor* tensor_ = nullptr;
  ParamRef param_;
};

}  // namespace tessera
