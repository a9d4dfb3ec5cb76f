// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/softmax.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class T>
void FillRow(T* row, int64_t width, Acc<T> value) {
  for (int64_t i = 0; i < width; ++i) row[i] = Store<T>(value);
}

// Rows may be the same memory in and out; element i depends on element i alone, which is what `ivdep` says.
template <class T>
void Forward(const SoftmaxForwardArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), y_rows(args.y.layout);
  const int64_t width = x_rows.width();
  ParallelFor(x_rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
      T* y = static_cast<T*>(args.y.data) + y_rows.offset(row);
      const A max = MaxOf<A>(width, -INFINITY, [&](int64_t i) { return Load(x[i]); });
      if (max == -INFINITY) {
        FillRow(y, width, args.log ? static_cast<A>(-INFINITY) : A(0));
        continue;
      }
      const A sum = SumOf<A>(width, [&](int64_t i) { return Exp(Load(x[i]) - max); });
      if (args.log) {
        const A log_sum = std::log(sum);
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) y[i] = Store<T>(Load(x[i]) - max - log_sum);
      } else {
        const A scale = A(1) / sum;
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) y[i] = Store<T>(Exp(Load(x[i]) - max) * scale);
      }
    }
  });
}

template <class T>
void Backward(const SoftmaxBackwardArgs& args) {
  using A = Acc<T>;
  const Rows y_rows(args.y.layout), dy_rows(args.dy.layout), dx_rows(args.dx.layout);
  const int64_t width = y_rows.width();
  ParallelFor(y_rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* y = static_cast<const T*>(args.y.data) + y_rows.offset(row);
      const T* dy = static_cast<const T*>(args.dy.data) + dy_rows.offset(row);
      T* dx = static_cast<T*>(args.dx.data) + dx_rows.offset(row);
      if (args.log) {
        if (MaxOf<A>(width, -INFINITY, [&](int64_t i) { return Load(y[i]); }) == -INFINITY) {
          FillRow(dx, width, A(0));
          continue;
        }
        const A sum = SumOf<A>(width, [&](int64_t i) { return Load(dy[i]); });
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) dx[i] = Store<T>(Load(dy[i]) - Exp(Load(y[i])) * sum);
      } else {
        const A dot = SumOf<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(y[i]); });
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) dx[i] = Store<T>(Load(y[i]) * (Load(dy[i]) - dot));
      }
    }
  });
}

}  // namespace

void SoftmaxForward(const SoftmaxForwardArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void SoftmaxBackward(const SoftmaxBackwardArgs& args) {
  DispatchFloating(args.y.dtype, [&](auto tag) { Backward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
