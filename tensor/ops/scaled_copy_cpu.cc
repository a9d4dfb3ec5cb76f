// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/scaled_copy.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
void ScaledCopyAs(const ScaledCopyArgs& args) {
  const A factor = args.factor.dtype == DType::kF64 ? static_cast<A>(*args.factor.as<double>())
                                                    : static_cast<A>(*args.factor.as<float>());
  const Layout* const layouts[] = {&args.out.layout, &args.x.layout};
  StridedLoop<2>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> x_run(args.x, offsets[1], n, steps[1]);
    WriteRun<A> out_run(args.out, offsets[0], steps[0], args.accumulate);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A* x = x_run.Block(begin, count);
      Map(count, out_run.Block(begin), [&](int64_t i) { return x[i] * factor; });
      out_run.Commit(begin, count);
    });
  });
}

}  // namespace

void ScaledCopy(const ScaledCopyArgs& args) {
  if (args.x.dtype == DType::kF64 || args.out.dtype == DType::kF64) return ScaledCopyAs<double>(args);
  ScaledCopyAs<float>(args);
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
