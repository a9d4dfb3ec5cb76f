// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/rope.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class T>
void RopeAs(const RopeArgs& args) {
  using A = Acc<T>;
  const Rows x_rows(args.x.layout), y_rows(args.y.layout);
  const int64_t time = args.x.size(1), heads = args.x.size(2), half = args.x.size(3) / 2;
  const int64_t rotated = args.rotated_heads < 0 ? heads : args.rotated_heads;
  const A* table = args.table.as<A>() + args.position_offset * 2 * half;
  const A sign = args.inverse ? A(-1) : A(1);
  ParallelFor(x_rows.count(), RowGrain(2 * half), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x.data) + x_rows.offset(row);
      T* y = static_cast<T*>(args.y.data) + y_rows.offset(row);
      if (row % heads >= rotated) {
#pragma GCC ivdep
        for (int64_t i = 0; i < 2 * half; ++i) y[i] = x[i];
        continue;
      }
      const A* cosine = table + row / heads % time * 2 * half;
      const A* sine = cosine + half;
#pragma GCC ivdep
      for (int64_t i = 0; i < half; ++i) {
        const A a = Load(x[i]), b = Load(x[i + half]), s = sign * sine[i];
        y[i] = Store<T>(a * cosine[i] - b * s);
        y[i + half] = Store<T>(b * cosine[i] + a * s);
      }
    }
  });
}

}  // namespace

void Rope(const RopeArgs& args) {
  DispatchFloating(args.x.dtype, [&](auto tag) { RopeAs<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
