// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/swiglu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
void Forward(const SwiGluForwardArgs& args) {
  const Layout* const layouts[] = {&args.y.layout, &args.gate.layout, &args.up.layout};
  StridedLoop<3>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> gate_run(args.gate, offsets[1], n, steps[1]), up_run(args.up, offsets[2], n, steps[2]);
    WriteRun<A> y_run(args.y, offsets[0], steps[0]);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A *gate = gate_run.Block(begin, count), *up = up_run.Block(begin, count);
      Map(count, y_run.Block(begin), [&](int64_t i) { return Silu(gate[i]) * up[i]; });
      y_run.Commit(begin, count);
    });
  });
}

template <class A>
void Backward(const SwiGluBackwardArgs& args) {
  const Layout* const layouts[] = {&args.dgate.layout, &args.dup.layout, &args.dy.layout, &args.gate.layout,
                                   &args.up.layout};
  StridedLoop<5>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> dy_run(args.dy, offsets[2], n, steps[2]), gate_run(args.gate, offsets[3], n, steps[3]);
    ReadRun<A> up_run(args.up, offsets[4], n, steps[4]);
    WriteRun<A> dgate_run(args.dgate, offsets[0], steps[0]), dup_run(args.dup, offsets[1], steps[1]);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A *dy = dy_run.Block(begin, count), *gate = gate_run.Block(begin, count), *up = up_run.Block(begin, count);
      A *dgate = dgate_run.Block(begin), *dup = dup_run.Block(begin);
      // Both in one loop: either may overwrite an input.
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        const A g = gate[i], gate_grad = dy[i] * up[i] * SiluDerivative(g), up_grad = dy[i] * Silu(g);
        dgate[i] = gate_grad;
        dup[i] = up_grad;
      }
      dgate_run.Commit(begin, count);
      dup_run.Commit(begin, count);
    });
  });
}

}  // namespace

void SwiGluForward(const SwiGluForwardArgs& args) {
  DispatchAccumulator(args.gate.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void SwiGluBackward(const SwiGluBackwardArgs& args) {
  DispatchAccumulator(args.gate.dtype, [&](auto tag) { Backward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
