// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels in blocks: the operands of a run are read as dense values of the accumulation type, whatever their
// dtypes and strides, so that an op's arithmetic is written and compiled once for f32 and once for f64.
//
//   ReadRun<A> x(args.x, offsets[1], n, steps[1]);
//   WriteRun<A> y(args.y, offsets[0], n, steps[0]);
//   ForEachBlock(n, [&](int64_t begin, int64_t count) {
//     const A* from = x.Block(begin, count);
//     A* to = y.Block(begin);
//     for (int64_t i = 0; i < count; ++i) to[i] = from[i] + 1;
//     y.Commit(begin, count);
//   });
#pragma once

#include "tensor/ops/cpu_kernel.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kBlock = 512;

template <class T, class A>
void ReadAs(const T* from, int64_t n, int64_t step, A* to) {
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(Load(from[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(Load(from[i * step]));
  }
}

template <class T, class A>
void WriteAs(const A* from, int64_t n, int64_t step, bool accumulate, T* to) {
  if (accumulate) {
    for (int64_t i = 0; i < n; ++i) to[i * step] = Store<T>(Load(to[i * step]) + from[i]);
  } else if (step == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = Store<T>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * step] = Store<T>(from[i]);
  }
}

// n <= kBlock elements, `step` apart from element `offset` of the storage on: where they are if they are dense values of A
// already, else converted into `buffer`.
template <class A>
TESSERA_ALWAYS_INLINE const A* ReadBlock(const ConstView& view, int64_t offset, int64_t n, int64_t step, A* buffer) {
  if (view.dtype == DTypeOf<A>() && step == 1) return static_cast<const A*>(view.data) + offset;
  DispatchFloating(view.dtype, [&](auto tag) {
    ReadAs(static_cast<const typename decltype(tag)::type*>(view.data) + offset, n, step, buffer);
  });
  return buffer;
}

// The same for i32, i64 and u8, as the 64 bits that sums modulo 2^64 are made of.
inline const uint64_t* ReadIntegers(const ConstView& view, int64_t offset, int64_t n, int64_t step, uint64_t* buffer) {
  const auto read = [&](auto* from) {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<uint64_t>(static_cast<int64_t>(from[i * step]));
  };
  if (view.dtype == DType::kU8) read(static_cast<const uint8_t*>(view.data) + offset);
  if (view.dtype == DType::kI32) read(static_cast<const int32_t*>(view.data) + offset);
  if (view.dtype == DType::kI64) read(static_cast<const int64_t*>(view.data) + offset);
  return buffer;
}

template <class A>
TESSERA_ALWAYS_INLINE void WriteBlock(const View& view, int64_t offset, int64_t n, int64_t step, bool accumulate,
                                      const A* values) {
  DispatchFloating(view.dtype, [&](auto tag) {
    WriteAs(values, n, step, accumulate, static_cast<typename decltype(tag)::type*>(view.data) + offset);
  });
}

// An operand that is read. With step 0 (an expanded dimension) the one value is spread once.
template <class A>
class ReadRun {
 public:
  TESSERA_ALWAYS_INLINE ReadRun(const ConstView& view, int64_t offset, int64_t n, int64_t step)
      : view_(view), offset_(offset), step_(step) {
    if (step == 0) ReadBlock(view, offset, n < kBlock ? n : kBlock, 0, buffer_);
  }
  TESSERA_ALWAYS_INLINE const A* Block(int64_t begin, int64_t n) {
    return step_ == 0 ? buffer_ : ReadBlock(view_, offset_ + begin * step_, n, step_, buffer_);
  }

 private:
  const ConstView& view_;
  int64_t offset_, step_;
  alignas(64) A buffer_[kBlock];
};

// An operand that is written: fill Block(), then Commit it.
template <class A>
class WriteRun {
 public:
  TESSERA_ALWAYS_INLINE WriteRun(const View& view, int64_t offset, int64_t step, bool accumulate = false)
      : view_(view), offset_(offset), step_(step), accumulate_(accumulate) {
    in_place_ = view.dtype == DTypeOf<A>() && step == 1 && !accumulate;
  }
  TESSERA_ALWAYS_INLINE A* Block(int64_t begin) {
    return in_place_ ? static_cast<A*>(view_.data) + offset_ + begin : buffer_;
  }
  TESSERA_ALWAYS_INLINE void Commit(int64_t begin, int64_t n) {
    if (!in_place_) WriteBlock(view_, offset_ + begin * step_, n, step_, accumulate_, buffer_);
  }

 private:
  const View& view_;
  int64_t offset_, step_;
  bool accumulate_, in_place_;
  alignas(64) A buffer_[kBlock];
};

template <class F>
TESSERA_ALWAYS_INLINE void ForEachBlock(int64_t n, F&& f) {
  for (int64_t begin = 0; begin < n; begin += kBlock) f(begin, n - begin < kBlock ? n - begin : kBlock);
}

// to[i] = f(i). `to` may be the very memory that f reads at i: no iteration sees another's result.
template <class A, class F>
TESSERA_ALWAYS_INLINE void Map(int64_t n, A* to, F&& f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = f(i);
}

// f(TypeTag<A>) for the type that values of this floating dtype are computed in.
template <class F>
TESSERA_ALWAYS_INLINE void DispatchAccumulator(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(TypeTag<double>{});
  f(TypeTag<float>{});
}

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
