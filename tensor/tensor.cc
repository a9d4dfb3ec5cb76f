// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <cstring>

#include "tensor/context.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "tensor/ops/transfer.h"

namespace tessera {
namespace {

double LoadElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    case DType::kF16:
      return ToFloat(static_cast<const Float16*>(data)[index]);
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[index];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[index]);
    case DType::kU8:
      return static_cast<const uint8_t*>(data)[index];
  }
  return 0;
}

void RequireCpu(const Tensor& x, const char* what) {
  if (!x.defined()) throw Error(Str(what, ": the tensor is undefined"));
  if (x.device().is_cpu()) return;
  const char* help = x.device().is_cuda() ? "; use CopyTo(x, kCpu)" : "";
  throw Error(Str(what, ": the tensor is on ", x.device(), ", this reads CPU memory", help));
}

}  // namespace

template <class T>
Tensor Tensor::From(std::span<const T> values, const Shape& shape) {
  if (static_cast<int64_t>(values.size()) != shape.numel()) {
    throw Error(Str("tensor: ", values.size(), " values do not fill shape ", shape));
  }
  Tensor result = EmptyOn(kCpu, shape, DTypeOf<T>());
  if (!values.empty()) std::memcpy(result.Write().data, values.data(), values.size_bytes());
  return result;
}

template Tensor Tensor::From<float>(std::span<const float>, const Shape&);
template Tensor Tensor::From<double>(std::span<const double>, const Shape&);
template Tensor Tensor::From<int32_t>(std::span<const int32_t>, const Shape&);
template Tensor Tensor::From<int64_t>(std::span<const int64_t>, const Shape&);
template Tensor Tensor::From<uint8_t>(std::span<const uint8_t>, const Shape&);
template Tensor Tensor::From<BFloat16>(std::span<const BFloat16>, const Shape&);
template Tensor Tensor::From<Float16>(std::span<const Float16>, const Shape&);

ConstView Tensor::Read() const {
  if (!defined()) throw Error("tensor: an undefined tensor has no data");
  return {storage_->data(), layout_, dtype_, storage_->device()};
}

View Tensor::Write() const {
  if (!defined()) throw Error("tensor: an undefined tensor has no data");
  storage_->BumpVersion();
  return {storage_->data(), layout_, dtype_, storage_->device()};
}

Tensor Tensor::WithLayout(const Layout& layout) const {
  if (layout.EndOffset() * ItemSize(dtype_) > storage_->bytes()) {
    throw Error(Str("tensor: ", layout, " reaches past the ", storage_->bytes(), " bytes of its storage"));
  }
  return Tensor(storage_, layout, dtype_);
}

double Tensor::At(std::initializer_list<int64_t> index) const {
  RequireCpu(*this, "At");
  if (static_cast<int>(index.size()) != rank()) {
    throw Error(Str("At: ", index.size(), " indexes for shape ", shape()));
  }
  int64_t element = layout_.offset();
  int dim = 0;
  for (int64_t i : index) {
    if (i < 0 || i >= layout_.size(dim)) throw Error(Str("At: index ", i, " is outside dim ", dim, " of ", shape()));
    element += i * layout_.stride(dim++);
  }
  return LoadElement(storage_->data(), dtype_, element);
}

double Tensor::Item() const {
  RequireCpu(*this, "Item");
  if (numel() != 1) throw Error(Str("Item: shape ", shape(), " has ", numel(), " elements, not 1"));
  return LoadElement(storage_->data(), dtype_, layout_.offset());
}

std::vector<double> Tensor::ToVector() const {
  RequireCpu(*this, "ToVector");
  std::vector<double> values(static_cast<size_t>(numel()));
  std::array<int64_t, kMaxRank> index{};
  for (double& value : values) {
    int64_t element = layout_.offset();
    for (int dim = 0; dim < rank(); ++dim) element += index[static_cast<size_t>(dim)] * layout_.stride(dim);
    value = LoadElement(storage_->data(), dtype_, element);
    for (int dim = rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<size_t>(dim)] < layout_.size(dim)) break;
      index[static_cast<size_t>(dim)] = 0;
    }
  }
  return values;
}

std::string Tensor::ToString() const {
  return defined() ? Str(Name(dtype_), " ", shape(), " ", device()) : std::string("undefined");
}

Tensor EmptyOn(Device device, const Shape& shape, DType dtype, MemoryTag tag) {
  Allocator& allocator = CurrentContext().allocator_for(device);
  const Layout layout = Layout::Contiguous(shape);
  int64_t bytes;
  if (__builtin_mul_overflow(layout.numel(), ItemSize(dtype), &bytes)) {
    throw Error(Str("tensor: shape ", shape, " has more bytes than 64 bits count"));
  }
  void* data = allocator.Allocate(bytes, tag);
  return Tensor(StorageRef(new Storage(data, bytes, device, tag, &allocator)), layout, dtype);
}

Tensor Empty(const Shape& shape, DType dtype, MemoryTag tag) {
  return EmptyOn(CurrentContext().device, shape, dtype, tag);
}

Tensor EmptyLike(const Tensor& like, MemoryTag tag) { return EmptyOn(like.device(), like.shape(), like.dtype(), tag); }

Tensor Full(const Shape& shape, DType dtype, double value, MemoryTag tag) {
  Tensor result = Empty(shape, dtype, tag);
  ops::Fill({.out = result.Write(), .value = value});
  return result;
}

Tensor Zeros(const Shape& shape, DType dtype, MemoryTag tag) { return Full(shape, dtype, 0.0, tag); }

Tensor CopyTo(const Tensor& x, DType dtype, MemoryTag tag) {
  Tensor result = EmptyOn(x.device(), x.shape(), dtype, tag);
  ops::Copy({.x = x.Read(), .out = result.Write()});
  return result;
}

Tensor CopyTo(const Tensor& x, Device device, MemoryTag tag) {
  const Tensor dense = x.layout().IsContiguous() ? x : CopyTo(x, x.dtype(), MemoryTag::kStaging);
  Tensor result = EmptyOn(device, x.shape(), x.dtype(), tag);
  ops::Transfer({.x = dense.Read(), .out = result.Write()});
  return result;
}

}  // namespace tessera
