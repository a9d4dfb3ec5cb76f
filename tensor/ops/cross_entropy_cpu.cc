// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/cross_entropy.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// Reads targets of any layout by row number.
template <class I>
class Targets {
 public:
  explicit Targets(const ConstView& view) : rows_(AsRows(view.layout)), data_(static_cast<const I*>(view.data)) {}
  TESSERA_ALWAYS_INLINE int64_t operator[](int64_t row) const { return data_[rows_.offset(row)]; }

 private:
  static Layout AsRows(const Layout& layout) {
    Shape shape = layout.shape(), strides = layout.strides();
    shape.push_back(1);
    strides.push_back(1);
    return Layout(shape, strides, layout.offset());
  }
  Rows rows_;
  const I* data_;
};

// The sum of exp(from[i] - shift); the exponentials go to `to`, which may be `from`, unless it is null. One code and
// one order with and without, so that the loss has the same bits.
template <class T, class A>
TESSERA_ALWAYS_INLINE A ExpRow(const T* from, A shift, int64_t n, A* to) {
  constexpr int64_t kBlock = 1024;  // stays in the first-level cache between the two loops
  A buffer[kBlock];
  A sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    A* block = to != nullptr ? to + begin : buffer;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) block[i] = Exp(Load(from[begin + i]) - shift);
    sum += SumOf<A>(count, [&](int64_t i) { return block[i]; });
  }
  return sum;
}

template <class T, class I>
void RowsAs(const CrossEntropyRowsArgs& args) {
  using A = Acc<T>;
  const Rows rows(args.logits.layout),
      gradient_rows(args.gradient.present() ? args.gradient.layout : args.logits.layout);
  const Targets<I> targets(args.targets);
  const int64_t width = rows.width(), classes = args.valid_classes < 0 ? width : args.valid_classes;
  A* loss = args.loss.as<A>();
  A* log_sum = args.log_sum.present() ? args.log_sum.as<A>() : nullptr;
  ParallelFor(rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.logits.data) + rows.offset(row);
      A* gradient = args.gradient.present() ? static_cast<A*>(args.gradient.data) + gradient_rows.offset(row) : nullptr;
      const int64_t target = targets[row];
      if (target == args.ignore_index) {
        loss[row] = 0;
        if (log_sum != nullptr) log_sum[row] = 0;
        if (gradient != nullptr) {
          for (int64_t i = 0; i < width; ++i) gradient[i] = 0;
        }
        continue;
      }
      const A max = MaxOf<A>(classes, -INFINITY, [&](int64_t i) { return Load(x[i]); });
      const A logit = Load(x[target]);
      const A sum = ExpRow(x, max, classes, gradient);
      const A log = max + std::log(sum);
      loss[row] = log - logit;
      if (log_sum != nullptr) log_sum[row] = log;
      if (gradient == nullptr) continue;
      const A scale = A(1) / sum;
      for (int64_t i = 0; i < classes; ++i) gradient[i] *= scale;
      for (int64_t i = classes; i < width; ++i) gradient[i] = 0;
      gradient[target] -= 1;
    }
  });
}

template <class T, class I>
void BackwardAs(const CrossEntropyBackwardArgs& args) {
  using A = Acc<T>;
  const Rows rows(args.logits.layout), dlogits_rows(args.dlogits.layout);
  const Targets<I> targets(args.targets);
  const int64_t width = rows.width(), classes = args.valid_classes < 0 ? width : args.valid_classes;
  const A* log_sum = args.log_sum.as<A>();
  const A dsum = *args.dsum.as<A>();
  ParallelFor(rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.logits.data) + rows.offset(row);
      T* dx = static_cast<T*>(args.dlogits.data) + dlogits_rows.offset(row);
      const int64_t target = targets[row];
      const int64_t written = target == args.ignore_index ? 0 : classes;
      if (written > 0) {
        const A shift = log_sum[row], at_target = (Exp(Load(x[target]) - shift) - A(1)) * dsum;
#pragma GCC ivdep
        for (int64_t i = 0; i < written; ++i) dx[i] = Store<T>(Exp(Load(x[i]) - shift) * dsum);
        dx[target] = Store<T>(at_target);
      }
      for (int64_t i = written; i < width; ++i) dx[i] = Store<T>(A(0));
    }
  });
}

template <class A, class I>
void TotalAs(const CrossEntropyTotalArgs& args) {
  const Targets<I> targets(args.targets);
  const A* loss = args.loss.as<A>();
  double sum = 0;
  int64_t weight = 0;
  for (int64_t row = 0; row < args.loss.numel(); ++row) {
    if (targets[row] == args.ignore_index) continue;
    sum += static_cast<double>(loss[row]);
    ++weight;
  }
  *args.sum.as<A>() = static_cast<A>(sum);
  *args.weight.as<A>() = static_cast<A>(weight);
}

template <class A>
void SeedAs(const MeanSeedArgs& args) {
  const A weight = *args.weight.as<A>();
  *args.seed.as<A>() = weight > 0 ? static_cast<A>(args.scale / static_cast<double>(weight)) : A(0);
}

}  // namespace

void CrossEntropyRows(const CrossEntropyRowsArgs& args) {
  DispatchFloating(args.logits.dtype, [&](auto tag) {
    DispatchIndex(args.targets.dtype,
                  [&](auto index) { RowsAs<typename decltype(tag)::type, typename decltype(index)::type>(args); });
  });
}

void CrossEntropyBackward(const CrossEntropyBackwardArgs& args) {
  DispatchFloating(args.logits.dtype, [&](auto tag) {
    DispatchIndex(args.targets.dtype,
                  [&](auto index) { BackwardAs<typename decltype(tag)::type, typename decltype(index)::type>(args); });
  });
}

void CrossEntropyTotal(const CrossEntropyTotalArgs& args) {
  DispatchIndex(args.targets.dtype, [&](auto index) {
    using I = typename decltype(index)::type;
    if (args.loss.dtype == DType::kF64) return TotalAs<double, I>(args);
    TotalAs<float, I>(args);
  });
}

void MeanSeed(const MeanSeedArgs& args) {
  if (args.weight.dtype == DType::kF64) return SeedAs<double>(args);
  SeedAs<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
