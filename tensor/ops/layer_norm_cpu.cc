// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/layer_norm.h"
#include "tensor/ops/norm_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class T>
void Forward(const LayerNormForwardArgs& args) {
  using A = Acc<T>;
  const bool adds = args.residual.present();
  const Rows x_rows(args.x.layout), y_rows(args.y.layout);
  const Rows residual_rows(adds ? args.residual.layout : args.x.layout),
      sum_rows(adds ? args.sum.layout : args.x.layout);
  const int64_t width = x_rows.width();
  const T* weight = args.weight.as<T>();
  const T* bias = args.bias.present() ? args.bias.as<T>() : nullptr;
  A *means = args.mean.as<A>(), *rstd = args.rstd.as<A>();
  const A eps = static_cast<A>(args.eps);
  ParallelFor(x_rows.count(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* residual = adds ? static_cast<const T*>(args.residual.data) + residual_rows.offset(row) : nullptr;
      T* sum = adds ? static_cast<T*>(args.sum.data) + sum_rows.offset(row) : nullptr;
      const T* x = AddResidual(static_cast<const T*>(args.x.data) + x_rows.offset(row), residual, sum, width);
      T* y = static_cast<T*>(args.y.data) + y_rows.offset(row);
      const A mean = SumOf<A>(width, [&](int64_t i) { return Load(x[i]); }) / static_cast<A>(width);
      const A squares = SumOf<A>(width, [&](int64_t i) { return (Load(x[i]) - mean) * (Load(x[i]) - mean); });
      const A scale = A(1) / std::sqrt(squares / static_cast<A>(width) + eps);
      means[row] = mean;
      rstd[row] = scale;
      if (bias == nullptr) {
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) y[i] = Store<T>((Load(x[i]) - mean) * scale * Load(weight[i]));
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) {
          y[i] = Store<T>((Load(x[i]) - mean) * scale * Load(weight[i]) + Load(bias[i]));
        }
      }
    }
  });
}

template <class T>
TESSERA_ALWAYS_INLINE void BackwardRow(const T* x, const T* dy, const T* weight, Acc<T> mean, Acc<T> scale,
                                       const T* dsum, T* dx, int64_t width) {
  using A = Acc<T>;
  const A sum = SumOf<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(weight[i]); });
  const A dot = SumOf<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(weight[i]) * (Load(x[i]) - mean); });
  const A mean_grad = sum / static_cast<A>(width), mean_dot = dot * scale * scale / static_cast<A>(width);
  const auto value = [&](int64_t i) {
    return scale * (Load(dy[i]) * Load(weight[i]) - mean_grad - (Load(x[i]) - mean) * mean_dot);
  };
  if (dsum == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) dx[i] = Store<T>(value(i));
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) dx[i] = Store<T>(value(i) + Load(dsum[i]));
  }
}

template <class T>
void Backward(const LayerNormBackwardArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), dy_rows(args.dy.layout),
      dx_rows(args.dx.present() ? args.dx.layout : args.x.layout);
  const Rows dsum_rows(args.dsum.present() ? args.dsum.layout : args.x.layout);
  const int64_t width = x_rows.width(), rows = x_rows.count();
  const T* weight = args.weight.as<T>();
  const A *means = args.mean.as<A>(), *rstd = args.rstd.as<A>();
  // Each block of rows has one row of partial dweight and one of partial dbias.
  const bool per_column = args.dweight.present() || args.dbias.present();
  A* partial = per_column ? args.workspace.as<A>() : nullptr;
  const int64_t blocks = (rows + kLayerNormRowBlock - 1) / kLayerNormRowBlock;
  ParallelFor(rows, kLayerNormRowBlock, [&](int64_t begin, int64_t end) {
    A* dweight = per_column ? partial + begin / kLayerNormRowBlock * 2 * width : nullptr;
    A* dbias = per_column ? dweight + width : nullptr;
    if (per_column) {
      for (int64_t i = 0; i < 2 * width; ++i) dweight[i] = 0;
    }
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
      const T* dy = static_cast<const T*>(args.dy.data) + dy_rows.offset(row);
      const A mean = means[row], scale = rstd[row];
      if (per_column) {  // first: dx may be dy
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) {
          dweight[i] += Load(dy[i]) * ((Load(x[i]) - mean) * scale);
          dbias[i] += Load(dy[i]);
        }
      }
      if (args.dx.present()) {
        const T* dsum = args.dsum.present() ? static_cast<const T*>(args.dsum.data) + dsum_rows.offset(row) : nullptr;
        BackwardRow(x, dy, weight, mean, scale, dsum, static_cast<T*>(args.dx.data) + dx_rows.offset(row), width);
      }
    }
  });
  if (args.dweight.present()) ReduceBlocks(partial, blocks, 2 * width, args.dweight, args.accumulate_dweight);
  if (args.dbias.present())
    ReduceBlocks(blocks > 0 ? partial + width : nullptr, blocks, 2 * width, args.dbias, args.accumulate_dbias);
}

}  // namespace

void LayerNormForward(const LayerNormForwardArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void LayerNormBackward(const LayerNormBackwardArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { Backward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
