// SPDX-License-Identifier: Apache-2.0
// The tensor: a value that names a block of memory and how to read it. Copying one shares the memory.
//
//   Tensor x = Tensor::From<float>({1, 2, 3, 4, 5, 6}, {2, 3});
//   Tensor y = Empty({2, 3}, DType::kF32);
//   x.At(1, 2) -> 6
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/error.h"
#include "tensor/layout.h"
#include "tensor/storage.h"

namespace tessera {

// Which tape tracks a tensor, and under which slot. Zero when untracked. autograd/ gives it meaning.
struct GradId {
  uint32_t tape = 0;
  uint32_t slot = 0;
  explicit operator bool() const { return tape != 0; }
  bool operator==(const GradId&) const = default;
};

// What a raw op gets: a borrowed pointer to the storage's start, and how to read from there.
struct ConstView {
  const void* data = nullptr;
  Layout layout;
  DType dtype = DType::kF32;
  Device device;

  bool present() const { return layout.rank() > 0 || data != nullptr; }  // optional arguments are left default
  const Shape& shape() const { return layout.shape(); }
  int rank() const { return layout.rank(); }
  int64_t size(int dim) const { return layout.size(dim); }
  int64_t stride(int dim) const { return layout.stride(dim); }
  int64_t numel() const { return layout.numel(); }
  template <class T>
  TESSERA_ALWAYS_INLINE const T* as() const {  // the first element
    return static_cast<const T*>(data) + layout.offset();
  }
};

struct View {
  void* data = nullptr;
  Layout layout;
  DType dtype = DType::kF32;
  Device device;

  operator ConstView() const { return {data, layout, dtype, device}; }  // NOLINT: implicit on purpose
  bool present() const { return layout.rank() > 0 || data != nullptr; }
  const Shape& shape() const { return layout.shape(); }
  int rank() const { return layout.rank(); }
  int64_t size(int dim) const { return layout.size(dim); }
  int64_t stride(int dim) const { return layout.stride(dim); }
  int64_t numel() const { return layout.numel(); }
  template <class T>
  TESSERA_ALWAYS_INLINE T* as() const {
    return static_cast<T*>(data) + layout.offset();
  }
};

class Tensor {
 public:
  Tensor() = default;  // no tensor: defined() is false
  Tensor(StorageRef storage, const Layout& layout, DType dtype, GradId grad_id = {})
      : storage_(std::move(storage)), layout_(layout), grad_id_(grad_id), dtype_(dtype) {}

  // Copies `values` to the CPU.
  template <class T>
  static Tensor From(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor From(std::initializer_list<T> values, const Shape& shape) {
    return From(std::span<const T>(values.begin(), values.size()), shape);
  }
  template <class T>
  static Tensor From(const std::vector<T>& values, const Shape& shape) {
    return From(std::span<const T>(values), shape);
  }

  bool defined() const { return static_cast<bool>(storage_); }
  const Layout& layout() const { return layout_; }
  const Shape& shape() const { return layout_.shape(); }
  int rank() const { return layout_.rank(); }
  int64_t size(int dim) const { return layout_.size(dim < 0 ? dim + rank() : dim); }
  int64_t numel() const { return layout_.numel(); }
  int64_t bytes() const { return numel() * ItemSize(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  const StorageRef& storage() const { return storage_; }
  GradId grad_id() const { return grad_id_; }
  bool tracked() const { return static_cast<bool>(grad_id_); }

  // Reading and writing for raw ops. Write() counts as a write: tensors saved for backward notice it.
  ConstView Read() const;
  View Write() const;

  // The same memory under another layout or tracking. The result of WithLayout is untracked: differentiable views are
  // functions of autograd (Transpose, Narrow, Reshape, ...).
  Tensor WithLayout(const Layout& layout) const;
  Tensor WithGradId(GradId grad_id) const { return Tensor(storage_, layout_, dtype_, grad_id); }
  Tensor Detach() const { return WithGradId({}); }

  // The value of a CPU element, as f64. For tests, logs and small programs.
  double At(std::initializer_list<int64_t> index) const;
  template <class... Index>
  double At(Index... index) const {
    return At({static_cast<int64_t>(index)...});
  }
  double Item() const;                   // of a tensor with one element
  std::vector<double> ToVector() const;  // row-major

  std::string ToString() const;  // "f32 (2, 3) cpu"

 private:
  StorageRef storage_;
  Layout layout_;
  GradId grad_id_;
  DType dtype_ = DType::kF32;
};

// New contiguous tensors on the current Context's device. Empty leaves the values undefined.
Tensor Empty(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::kActivations);
Tensor EmptyOn(Device device, const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::kActivations);
Tensor EmptyLike(const Tensor& like, MemoryTag tag = MemoryTag::kActivations);  // contiguous, like's device
Tensor Zeros(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::kActivations);
Tensor Full(const Shape& shape, DType dtype, double value, MemoryTag tag = MemoryTag::kActivations);

// A dense copy in another dtype; the same dtype gives a plain contiguous copy.
Tensor CopyTo(const Tensor& x, DType dtype, MemoryTag tag = MemoryTag::kActivations);
// A dense copy on another device. To the CPU: complete on return.
Tensor CopyTo(const Tensor& x, Device device, MemoryTag tag = MemoryTag::kActivations);

}  // namespace tessera
