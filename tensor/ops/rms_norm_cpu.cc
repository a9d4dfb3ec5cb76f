// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/rms_norm.h"

#include "tensor/ops/cpu_kernel.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class T>
void Forward(const RmsNormForwardArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), y_rows(args.y.layout);
  const int64_t width = x_rows.width();
  const T* weight = args.weight.as<T>();
  A* rstd = args.rstd.as<A>();
  const A eps = static_cast<A>(args.eps);
  ParallelFor(x_rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
      T* y = static_cast<T*>(args.y.data) + y_rows.offset(row);
      const A sum = SumOf<A>(width, [&](int64_t i) { return Load(x[i]) * Load(x[i]); });
      const A scale = A(1) / std::sqrt(sum / static_cast<A>(width) + eps);
      rstd[row] = scale;
      for (int64_t i = 0; i < width; ++i) y[i] = Store<T>(Load(x[i]) * scale * Load(weight[i]));
    }
  });
}

template <class T>
void BackwardInput(const RmsNormBackwardArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), dy_rows(args.dy.layout), dx_rows(args.dx.layout);
  const int64_t width = x_rows.width();
  const T* weight = args.weight.as<T>();
  const A* rstd = args.rstd.as<A>();
  ParallelFor(x_rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
      const T* dy = static_cast<const T*>(args.dy.data) + dy_rows.offset(row);
      T* dx = static_cast<T*>(args.dx.data) + dx_rows.offset(row);
      const A scale = rstd[row];
      const A dot = SumOf<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(weight[i]) * Load(x[i]); });
      const A mean = dot * scale * scale / static_cast<A>(width);
      for (int64_t i = 0; i < width; ++i) {
        dx[i] = Store<T>(scale * (Load(dy[i]) * Load(weight[i]) - Load(x[i]) * mean));
      }
    }
  });
}

template <class T, class G>
void BackwardWeight(const RmsNormBackwardArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), dy_rows(args.dy.layout);
  const int64_t width = x_rows.width(), rows = x_rows.count();
  const A* rstd = args.rstd.as<A>();
  A* partial = args.workspace.as<A>();
  const int64_t blocks = (rows + kNormRowBlock - 1) / kNormRowBlock;
  ParallelFor(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      A* sum = partial + block * width;
      for (int64_t i = 0; i < width; ++i) sum[i] = 0;
      const int64_t end = (block + 1) * kNormRowBlock < rows ? (block + 1) * kNormRowBlock : rows;
      for (int64_t row = block * kNormRowBlock; row < end; ++row) {
        const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
        const T* dy = static_cast<const T*>(args.dy.data) + dy_rows.offset(row);
        const A scale = rstd[row];
        for (int64_t i = 0; i < width; ++i) sum[i] += Load(dy[i]) * Load(x[i]) * scale;
      }
    }
  });
  G* dweight = args.dweight.as<G>();
  for (int64_t i = 0; i < width; ++i) {
    A sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += partial[block * width + i];
    dweight[i] = Store<G>(args.accumulate_dweight ? Load(dweight[i]) + sum : sum);
  }
}

}  // namespace

void RmsNormForward(const RmsNormForwardArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void RmsNormBackward(const RmsNormBackwardArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.dx.present()) BackwardInput<T>(args);
    if (args.dweight.present()) {
      DispatchFloating(args.dweight.dtype,
                       [&](auto grad) { BackwardWeight<T, typename decltype(grad)::type>(args); });
    }
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
