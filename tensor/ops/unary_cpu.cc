// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/unary.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class A>
void ForwardBlock(UnaryOp op, int64_t n, const A* x, A* y) {
  switch (op) {
    case UnaryOp::kNeg:
      return Map(n, y, [&](int64_t i) { return -x[i]; });
    case UnaryOp::kExp:
      return Map(n, y, [&](int64_t i) { return Exp(x[i]); });
    case UnaryOp::kLog:
      return Map(n, y, [&](int64_t i) { return Log(x[i]); });
    case UnaryOp::kSqrt:
      return Map(n, y, [&](int64_t i) { return std::sqrt(x[i]); });
    case UnaryOp::kRsqrt:
      return Map(n, y, [&](int64_t i) { return A(1) / std::sqrt(x[i]); });
    case UnaryOp::kSquare:
      return Map(n, y, [&](int64_t i) { return x[i] * x[i]; });
    case UnaryOp::kAbs:
      return Map(n, y, [&](int64_t i) { return std::fabs(x[i]); });
    case UnaryOp::kReciprocal:
      return Map(n, y, [&](int64_t i) { return A(1) / x[i]; });
    case UnaryOp::kTanh:
      return Map(n, y, [&](int64_t i) { return Tanh(x[i]); });
    case UnaryOp::kSigmoid:
      return Map(n, y, [&](int64_t i) { return Sigmoid(x[i]); });
    case UnaryOp::kRelu:
      return Map(n, y, [&](int64_t i) { return x[i] < 0 ? A(0) : x[i]; });
    case UnaryOp::kSilu:
      return Map(n, y, [&](int64_t i) { return Silu(x[i]); });
    case UnaryOp::kGeluTanh:
      return Map(n, y, [&](int64_t i) { return GeluTanh(x[i]); });
    case UnaryOp::kGeluErf:
      return Map(n, y, [&](int64_t i) { return GeluErf(x[i]); });
  }
}

// s is x or y, as SavedFor says.
template <class A>
void BackwardBlock(UnaryOp op, int64_t n, const A* dy, const A* s, A* dx) {
  switch (op) {
    case UnaryOp::kNeg:
      return Map(n, dx, [&](int64_t i) { return -dy[i]; });
    case UnaryOp::kExp:
      return Map(n, dx, [&](int64_t i) { return dy[i] * s[i]; });
    case UnaryOp::kLog:
      return Map(n, dx, [&](int64_t i) { return dy[i] / s[i]; });
    case UnaryOp::kSqrt:
      return Map(n, dx, [&](int64_t i) { return A(0.5) * dy[i] / s[i]; });
    case UnaryOp::kRsqrt:
      return Map(n, dx, [&](int64_t i) { return A(-0.5) * dy[i] * (s[i] * s[i] * s[i]); });
    case UnaryOp::kSquare:
      return Map(n, dx, [&](int64_t i) { return A(2) * dy[i] * s[i]; });
    case UnaryOp::kAbs:
      return Map(n, dx, [&](int64_t i) { return dy[i] * (s[i] > 0 ? A(1) : (s[i] < 0 ? A(-1) : s[i])); });
    case UnaryOp::kReciprocal:
      return Map(n, dx, [&](int64_t i) { return -dy[i] * (s[i] * s[i]); });
    case UnaryOp::kTanh:
      return Map(n, dx, [&](int64_t i) { return dy[i] * (A(1) - s[i] * s[i]); });
    case UnaryOp::kSigmoid:
      return Map(n, dx, [&](int64_t i) { return dy[i] * (s[i] * (A(1) - s[i])); });
    case UnaryOp::kRelu:
      return Map(n, dx, [&](int64_t i) {
        const A passed = dy[i];
        return s[i] <= 0 ? A(0) : passed;
      });
    case UnaryOp::kSilu:
      return Map(n, dx, [&](int64_t i) { return dy[i] * SiluDerivative(s[i]); });
    case UnaryOp::kGeluTanh:
      return Map(n, dx, [&](int64_t i) { return dy[i] * GeluTanhDerivative(s[i]); });
    case UnaryOp::kGeluErf:
      return Map(n, dx, [&](int64_t i) { return dy[i] * GeluErfDerivative(s[i]); });
  }
}

template <class A>
void Forward(const UnaryForwardArgs& args) {
  const Layout* const layouts[] = {&args.y.layout, &args.x.layout};
  StridedLoop<2>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> x(args.x, offsets[1], n, steps[1]);
    WriteRun<A> y(args.y, offsets[0], steps[0]);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      ForwardBlock(args.op, count, x.Block(begin, count), y.Block(begin));
      y.Commit(begin, count);
    });
  });
}

template <class A>
void Backward(const UnaryBackwardArgs& args) {
  const ConstView& saved = SavedFor(args.op) == UnarySaved::kNothing ? args.dy : args.saved;
  const Layout* const layouts[] = {&args.dx.layout, &args.dy.layout, &saved.layout};
  StridedLoop<3>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> dy(args.dy, offsets[1], n, steps[1]), s(saved, offsets[2], n, steps[2]);
    WriteRun<A> dx(args.dx, offsets[0], steps[0], args.accumulate);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      BackwardBlock(args.op, count, dy.Block(begin, count), s.Block(begin, count), dx.Block(begin));
      dx.Commit(begin, count);
    });
  });
}

}  // namespace

void UnaryForward(const UnaryForwardArgs& args) {
  DispatchAccumulator(args.x.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void UnaryBackward(const UnaryBackwardArgs& args) {
  DispatchAccumulator(args.dy.dtype, [&](auto tag) { Backward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
