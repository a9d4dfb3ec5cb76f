// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/binary.h"
#include "tensor/ops/sum_loop_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

ConstView Expanded(const ConstView& view, const Shape& shape) {
  ConstView result = view;
  result.layout = view.layout.Expand(shape);
  return result;
}

template <class A>
void ForwardBlock(BinaryOp op, int64_t n, const A* a, const A* b, A* y) {
  switch (op) {
    case BinaryOp::kAdd:
      return Map(n, y, [&](int64_t i) { return a[i] + b[i]; });
    case BinaryOp::kSub:
      return Map(n, y, [&](int64_t i) { return a[i] - b[i]; });
    case BinaryOp::kMul:
      return Map(n, y, [&](int64_t i) { return a[i] * b[i]; });
    case BinaryOp::kDiv:
      return Map(n, y, [&](int64_t i) { return a[i] / b[i]; });
  }
}

template <class A>
void Forward(const BinaryForwardArgs& args) {
  const ConstView a = Expanded(args.a, args.y.shape()), b = Expanded(args.b, args.y.shape());
  const Layout* const layouts[] = {&args.y.layout, &a.layout, &b.layout};
  StridedLoop<3>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> a_run(a, offsets[1], n, steps[1]), b_run(b, offsets[2], n, steps[2]);
    WriteRun<A> y(args.y, offsets[0], steps[0]);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      ForwardBlock(args.op, count, a_run.Block(begin, count), b_run.Block(begin, count), y.Block(begin));
      y.Commit(begin, count);
    });
  });
}

// The terms of one operand's gradient. p: dy, and what BinaryGradReads names, in the order a, b.
template <class A>
const A* Terms(BinaryOp op, BinarySide side, const A* const* p, int64_t n, A* to) {
  const A* dy = p[0];
  const A* other = p[1];
  switch (op) {
    case BinaryOp::kAdd:
      return dy;
    case BinaryOp::kSub:
      if (side == BinarySide::kA) return dy;
      Map(n, to, [&](int64_t i) { return -dy[i]; });
      return to;
    case BinaryOp::kMul:
      Map(n, to, [&](int64_t i) { return dy[i] * other[i]; });
      return to;
    case BinaryOp::kDiv:
      if (side == BinarySide::kA) {
        Map(n, to, [&](int64_t i) { return dy[i] / other[i]; });
      } else {
        const A* b = p[2];
        Map(n, to, [&](int64_t i) { return -(dy[i] / b[i]) * (other[i] / b[i]); });
      }
      return to;
  }
  return dy;
}

// The gradient of an operand of y's own shape.
template <class A, int N>
void Elementwise(const BinaryBackwardArgs& args, BinarySide side, const ConstView* const (&operands)[N],
                 const View& grad, bool accumulate) {
  const Layout* layouts[N + 1] = {&grad.layout};
  for (int k = 0; k < N; ++k) layouts[k + 1] = &operands[k]->layout;
  const Layout* const(&const_layouts)[N + 1] = layouts;
  StridedLoop<N + 1>(const_layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    alignas(64) A buffers[N + 1][kBlock];
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const A* blocks[3] = {};
      for (int k = 0; k < N; ++k) {
        const int64_t step = steps[k + 1];
        blocks[k] = ReadBlock(*operands[k], offsets[k + 1] + begin * step, count, step, buffers[k]);
      }
      const A* values = Terms(args.op, side, blocks, count, buffers[N]);
      WriteBlock(grad, offsets[0] + begin * steps[0], count, steps[0], accumulate, values);
    });
  });
}

template <class A, int N>
void GradientFrom(const BinaryBackwardArgs& args, BinarySide side, const ConstView* const (&operands)[N],
                  const View& grad, bool accumulate) {
  if (grad.shape() == args.dy.shape()) return Elementwise<A>(args, side, operands, grad, accumulate);
  const SumPlan plan = PlanSum(Name(args.op), args.dy.shape(), grad.shape());
  SumLoop<A>(plan, operands, grad)
      .Run({.accumulate = accumulate, .workspace = plan.segments > 1 ? args.workspace.as<double>() : nullptr},
           [&](const A* const* p, int64_t n, A* buffer) { return Terms(args.op, side, p, n, buffer); });
}

template <class A>
void Gradient(const BinaryBackwardArgs& args, BinarySide side, const View& grad, bool accumulate) {
  const BinaryReads reads = BinaryGradReads(args.op, side);
  const ConstView a = reads.a ? Expanded(args.a, args.dy.shape()) : ConstView();
  const ConstView b = reads.b ? Expanded(args.b, args.dy.shape()) : ConstView();
  if (reads.a && reads.b) {
    const ConstView* const operands[] = {&args.dy, &a, &b};
    GradientFrom<A>(args, side, operands, grad, accumulate);
  } else if (reads.a || reads.b) {
    const ConstView* const operands[] = {&args.dy, reads.a ? &a : &b};
    GradientFrom<A>(args, side, operands, grad, accumulate);
  } else {
    const ConstView* const operands[] = {&args.dy};
    GradientFrom<A>(args, side, operands, grad, accumulate);
  }
}

}  // namespace

void BinaryForward(const BinaryForwardArgs& args) {
  DispatchAccumulator(args.y.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void BinaryBackward(const BinaryBackwardArgs& args) {
  DispatchAccumulator(args.dy.dtype, [&](auto tag) {
    using A = typename decltype(tag)::type;
    if (args.da.present()) Gradient<A>(args, BinarySide::kA, args.da, args.accumulate_da);
    if (args.db.present()) Gradient<A>(args, BinarySide::kB, args.db, args.accumulate_db);
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
