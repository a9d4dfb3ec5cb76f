// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"
#include "tensor/ops/sum_loop_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
void Sum(const ReduceSumArgs& args) {
  const ConstView* const operands[] = {&args.x};
  using Loop = SumLoop<A>;
  const SumPlan plan = PlanSum("sum", args.x.shape(), args.out.shape());
  Loop(plan, operands, args.out)
      .Run({.mean = args.mean,
            .accumulate = args.accumulate,
            .workspace = plan.segments > 1 ? args.workspace.as<typename Loop::Total>() : nullptr},
           [](const A* const* p, int64_t, A*) { return p[0]; });
}

template <class A>
TESSERA_ALWAYS_INLINE bool Beats(A value, A best) {
  return (value > best) | ((value != value) & (best == best));
}

// One maximum along n elements that are `step` apart.
template <class A>
void MaxOfRow(const ConstView& x, int64_t offset, int64_t n, int64_t step, A* best, int64_t* at) {
  alignas(64) A buffer[kBlock];
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const A* values = ReadBlock(x, offset + begin * step, count, step, buffer);
    if (begin == 0) {
      *best = values[0];
      *at = 0;
    }
    const A largest = MaxOf<A>(count, *best, [&](int64_t i) { return values[i]; });
    if (!Beats(largest, *best)) return;
    int64_t i = 0;
    while (!(values[i] == largest || values[i] != values[i])) ++i;
    *best = largest;
    *at = begin + i;
  });
}

// Maxima of `count` <= kBlock neighbouring columns, row by row.
template <class A>
void MaxOfColumns(const ConstView& x, int64_t offset, int64_t count, int64_t step, int64_t rows, int64_t row_step,
                  A* best, int64_t* at) {
  alignas(64) A buffer[kBlock];
  for (int64_t row = 0; row < rows; ++row) {
    const A* values = ReadBlock(x, offset + row * row_step, count, step, buffer);
    if (row == 0) {
      for (int64_t i = 0; i < count; ++i) {
        best[i] = values[i];
        at[i] = 0;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const bool beats = Beats(values[i], best[i]);
      best[i] = beats ? values[i] : best[i];
      at[i] = beats ? row : at[i];
    }
  }
}

template <class A>
void Max(const ReduceMaxArgs& args) {
  const Layout kept = args.x.layout.Narrow(args.dim, 0, 1);
  const int64_t rows = args.x.size(args.dim), row_step = args.x.stride(args.dim);
  const Layout& index_layout = args.index.present() ? args.index.layout : args.out.layout;
  int64_t* index = args.index.present() ? static_cast<int64_t*>(args.index.data) : nullptr;
  const Layout* const layouts[] = {&args.out.layout, &kept, &index_layout};
  const auto run = [&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    WriteRun<A> out(args.out, offsets[0], steps[0]);
    int64_t at[kBlock];
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      A* best = out.Block(begin);
      const int64_t from = offsets[1] + begin * steps[1];
      if (row_step == 1 || count < 8) {
        for (int64_t i = 0; i < count; ++i) MaxOfRow(args.x, from + i * steps[1], rows, row_step, best + i, at + i);
      } else {
        MaxOfColumns(args.x, from, count, steps[1], rows, row_step, best, at);
      }
      out.Commit(begin, count);
      if (index == nullptr) return;
      for (int64_t i = 0; i < count; ++i) index[offsets[2] + (begin + i) * steps[2]] = at[i];
    });
  };
  // Columns share cache lines, so that at least 64 of them stay together.
  StridedLoop<3>(layouts).ForEach(run, row_step != 1 && rows > 256 ? 256 : rows);
}

template <class A>
void MaxBackward(const ReduceMaxBackwardArgs& args) {
  const Layout kept = args.dx.layout.Narrow(args.dim, 0, 1);
  const int64_t row_step = args.dx.stride(args.dim);
  const int64_t* index = static_cast<const int64_t*>(args.index.data);
  const Layout* const layouts[] = {&kept, &args.dy.layout, &args.index.layout};
  StridedLoop<3>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> dy(args.dy, offsets[1], n, steps[1]);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A* values = dy.Block(begin, count);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = index[offsets[2] + (begin + i) * steps[2]];
        WriteBlock(args.dx, offsets[0] + (begin + i) * steps[0] + at * row_step, 1, 1, /*accumulate=*/true, values + i);
      }
    });
  });
}

}  // namespace

void ReduceSum(const ReduceSumArgs& args) {
  if (!IsFloating(args.x.dtype)) return Sum<uint64_t>(args);
  DispatchAccumulator(args.x.dtype, [&](auto tag) { Sum<typename decltype(tag)::type>(args); });
}

void ReduceMax(const ReduceMaxArgs& args) {
  DispatchAccumulator(args.x.dtype, [&](auto tag) { Max<typename decltype(tag)::type>(args); });
}

void ReduceMaxBackward(const ReduceMaxBackwardArgs& args) {
  DispatchAccumulator(args.dy.dtype, [&](auto tag) { MaxBackward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
