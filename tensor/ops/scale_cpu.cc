// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/scale.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
void ScaleAs(const ScaleArgs& args) {
  double product = args.factor;
  if (args.factor_tensor.present()) {
    product *=
        args.factor_tensor.dtype == DType::kF64 ? *args.factor_tensor.as<double>() : *args.factor_tensor.as<float>();
  }
  const A factor = static_cast<A>(product), shift = static_cast<A>(args.shift);
  const Layout* const layouts[] = {&args.out.layout, &args.x.layout};
  StridedLoop<2>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> x(args.x, offsets[1], n, steps[1]);
    WriteRun<A> out(args.out, offsets[0], steps[0], args.accumulate);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A* from = x.Block(begin, count);
      Map(count, out.Block(begin), [&](int64_t i) { return from[i] * factor + shift; });
      out.Commit(begin, count);
    });
  });
}

}  // namespace

void Scale(const ScaleArgs& args) {
  if (args.x.dtype == DType::kF64 || args.out.dtype == DType::kF64) return ScaleAs<double>(args);
  ScaleAs<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
