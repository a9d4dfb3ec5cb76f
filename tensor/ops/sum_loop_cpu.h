// SPDX-License-Identifier: Apache-2.0
// The loop under every sum over dimensions: of a tensor, and of the terms of a broadcast operand's gradient. Order and
// accuracy are those that reduce.h promises.
//
//   const ConstView* const operands[] = {&args.x};
//   SumLoop<float>(plan, operands, args.out).Run(options, [](const float* const* p, int64_t, float*) { return p[0]; });
#pragma once

#include "tensor/function_ref.h"
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/reduce.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// The dims of one kind, kept or summed; neighbours that all operands can join are one.
template <int N>
struct LoopDims {
  int rank = 0;
  int64_t size[kMaxRank];
  int64_t stride[kMaxRank][N];

  void Add(int64_t new_size, const int64_t (&strides)[N]) {
    bool joins = rank > 0;
    for (int k = 0; k < N && joins; ++k) joins = stride[rank - 1][k] == strides[k] * new_size;
    if (joins) {
      size[rank - 1] *= new_size;
    } else {
      size[rank++] = new_size;
    }
    for (int k = 0; k < N; ++k) stride[rank - 1][k] = strides[k];
  }
  // Adds the place of `index`, row-major over the first `dims` dims, to the offsets.
  TESSERA_ALWAYS_INLINE void Advance(int64_t index, int dims, int64_t* offsets) const {
    for (int dim = dims - 1; dim >= 0; --dim) {
      const int64_t i = dim == 0 ? index : index % size[dim];
      if (dim > 0) index /= size[dim];
      for (int k = 0; k < N; ++k) offsets[k] += i * stride[dim][k];
    }
  }
};

// A: what terms are computed in: float, double, or uint64_t for integers (sums wrap). Up to three operands of the full
// shape, and an output that broadcasts to it.
template <class A>
class SumLoop {
 public:
  static constexpr int kOperands = 3;
  static constexpr int kOut = kOperands;  // the output's place among the strides
  using Total = std::conditional_t<std::is_same_v<A, uint64_t>, uint64_t, double>;
  // The terms of n elements, n <= kBlock: either in `buffer`, which it fills, or where an operand has them.
  using Terms = FunctionRef<const A*(const A* const* operands, int64_t n, A* buffer)>;

  struct Options {
    bool mean = false;
    bool accumulate = false;
    Total* workspace = nullptr;
  };

  template <int N>
  SumLoop(const SumPlan& plan, const ConstView* const (&operands)[N], const View& out)
      : plan_(plan), count_(N), out_(out) {
    static_assert(N <= kOperands);
    const Layout& full = operands[0]->layout;
    for (int k = 0; k < N; ++k) {
      operands_[k] = operands[k];
      start_[k] = operands[k]->layout.offset();
    }
    start_[kOut] = out.layout.offset();
    // Whichever way the dims are ordered, the ones that lie closest in memory come last.
    const int extra = full.rank() - out.rank();
    int order[kMaxRank];
    int64_t reach[kMaxRank];
    int dims = 0;
    for (int dim = 0; dim < full.rank(); ++dim) {
      if (full.size(dim) == 1) continue;
      reach[dim] = 0;
      for (int k = 0; k < N; ++k) reach[dim] += Distance(operands[k]->stride(dim));
      int place = dims++;
      for (; place > 0 && reach[order[place - 1]] < reach[dim]; --place) order[place] = order[place - 1];
      order[place] = dim;
    }
    for (int place = 0; place < dims; ++place) {
      const int dim = order[place];
      int64_t strides[kOperands + 1] = {};
      for (int k = 0; k < N; ++k) strides[k] = operands[k]->stride(dim);
      const bool kept = dim >= extra && out.size(dim - extra) != 1;
      if (kept) strides[kOut] = out.stride(dim - extra);
      (kept ? kept_ : summed_).Add(full.size(dim), strides);
      (kept ? kept_reach_ : summed_reach_) = reach[dim];
    }
    const int64_t none[kOperands + 1] = {};
    if (kept_.rank == 0) kept_.Add(1, none);
    if (summed_.rank == 0) summed_.Add(plan.terms, none);
  }

  void Run(const Options& options, Terms terms) const {
    if (plan_.outputs == 0) return;
    const int64_t columns = kept_.size[kept_.rank - 1];
    const bool by_columns = columns >= 8 && (plan_.terms == 1 || kept_reach_ < summed_reach_);
    by_columns ? SumColumns(options, terms) : SumRows(options, terms);
    if (plan_.segments > 1) AddSegments(options);
  }

 private:
  static constexpr int64_t kChunk = 32768;  // elements that one chunk of a parallel loop takes, about

  static int64_t Distance(int64_t stride) { return stride < 0 ? -stride : stride; }
  int64_t SegmentEnd(int64_t segment) const {
    const int64_t end = (segment + 1) * plan_.segment_terms;
    return end < plan_.terms ? end : plan_.terms;
  }
  static int64_t Grain(int64_t elements) { return elements >= kChunk ? 1 : kChunk / (elements > 0 ? elements : 1); }

  const A* TermsAt(const int64_t* offsets, const int64_t* steps, int64_t n, Terms terms, A (*buffers)[kBlock]) const {
    const A* blocks[kOperands];
    for (int k = 0; k < count_; ++k) blocks[k] = Read(*operands_[k], offsets[k], n, steps[k], buffers[k]);
    return terms(blocks, n, buffers[kOperands]);
  }
  static const A* Read(const ConstView& view, int64_t offset, int64_t n, int64_t step, A* buffer) {
    if constexpr (std::is_same_v<A, uint64_t>) {
      return ReadIntegers(view, offset, n, step, buffer);
    } else {
      return ReadBlock(view, offset, n, step, buffer);
    }
  }

  // One output at a time, along the summed dims: for rows that are dense, and for few outputs side by side.
  void SumRows(const Options& options, Terms terms) const {
    const int inner = summed_.rank - 1;
    const int64_t width = summed_.size[inner];
    ParallelFor(plan_.outputs * plan_.segments, Grain(plan_.segment_terms), [&](int64_t begin, int64_t end) {
      alignas(64) A buffers[kOperands + 1][kBlock];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t output = task / plan_.segments, segment = task % plan_.segments;
        int64_t base[kOperands + 1];
        for (int k = 0; k <= kOut; ++k) base[k] = start_[k];
        kept_.Advance(output, kept_.rank, base);
        Total total = 0;
        const int64_t last = SegmentEnd(segment);
        for (int64_t term = segment * plan_.segment_terms; term < last;) {
          int64_t offsets[kOperands + 1];
          for (int k = 0; k <= kOut; ++k) offsets[k] = base[k];
          summed_.Advance(term, inner + 1, offsets);
          int64_t n = width - term % width;
          if (n > last - term) n = last - term;
          if (n > kBlock) n = kBlock;
          const A* values = TermsAt(offsets, summed_.stride[inner], n, terms, buffers);
          total += static_cast<Total>(SumOf<A>(n, [&](int64_t i) { return values[i]; }));
          term += n;
        }
        Keep(options, output, segment, base[kOut], 0, 1, &total);
      }
    });
  }

  // Up to kBlock neighbouring outputs at a time, one summed row after the other.
  void SumColumns(const Options& options, Terms terms) const {
    const int inner = kept_.rank - 1;
    const int64_t width = kept_.size[inner];
    const int64_t tiles = (width + kBlock - 1) / kBlock, outer = plan_.outputs / width;
    const int64_t rows = plan_.segment_terms * (width < kBlock ? width : kBlock);
    ParallelFor(outer * tiles * plan_.segments, Grain(rows), [&](int64_t begin, int64_t end) {
      alignas(64) A buffers[kOperands + 1][kBlock];
      alignas(64) A part[kBlock];
      alignas(64) Total total[kBlock];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t segment = task % plan_.segments, place = task / plan_.segments;
        const int64_t first = place % tiles * kBlock;
        const int64_t n = width - first < kBlock ? width - first : kBlock;
        int64_t base[kOperands + 1];
        for (int k = 0; k <= kOut; ++k) base[k] = start_[k] + first * kept_.stride[inner][k];
        kept_.Advance(place / tiles, inner, base);
        for (int64_t i = 0; i < n; ++i) total[i] = 0;
        constexpr int64_t kRows = 64;  // whose sums are in A before they go to the total
        const int64_t last = SegmentEnd(segment);
        for (int64_t row = segment * plan_.segment_terms; row < last;) {
          const int64_t stop = last - row < kRows ? last : row + kRows;
          for (int64_t i = 0; i < n; ++i) part[i] = 0;
          for (; row < stop; ++row) {
            int64_t offsets[kOperands + 1];
            for (int k = 0; k <= kOut; ++k) offsets[k] = base[k];
            summed_.Advance(row, summed_.rank, offsets);
            const A* values = TermsAt(offsets, kept_.stride[inner], n, terms, buffers);
            for (int64_t i = 0; i < n; ++i) part[i] += values[i];
          }
          for (int64_t i = 0; i < n; ++i) total[i] += static_cast<Total>(part[i]);
        }
        Keep(options, place / tiles * width + first, segment, base[kOut], kept_.stride[inner][kOut], n, total);
      }
    });
  }

  // The segments of each output, in order.
  void AddSegments(const Options& options) const {
    ParallelFor(plan_.outputs, Grain(plan_.segments), [&](int64_t begin, int64_t end) {
      for (int64_t output = begin; output < end; ++output) {
        Total total = 0;
        for (int64_t segment = 0; segment < plan_.segments; ++segment) {
          total += options.workspace[segment * plan_.outputs + output];
        }
        int64_t base[kOperands + 1] = {0, 0, 0, start_[kOut]};
        kept_.Advance(output, kept_.rank, base);
        Write(options, base[kOut], 0, 1, &total);
      }
    });
  }

  // n finished sums of one segment, of neighbouring outputs from `output` on.
  void Keep(const Options& options, int64_t output, int64_t segment, int64_t offset, int64_t step, int64_t n,
            Total* totals) const {
    if (plan_.segments == 1) return Write(options, offset, step, n, totals);
    Total* to = options.workspace + segment * plan_.outputs + output;
    for (int64_t i = 0; i < n; ++i) to[i] = totals[i];
  }

  void Write(const Options& options, int64_t offset, int64_t step, int64_t n, Total* totals) const {
    if constexpr (std::is_same_v<Total, uint64_t>) {
      int64_t* to = static_cast<int64_t*>(out_.data) + offset;
      for (int64_t i = 0; i < n; ++i) to[i * step] = static_cast<int64_t>(totals[i]);
    } else {
      if (options.mean) {
        for (int64_t i = 0; i < n; ++i) totals[i] /= static_cast<double>(plan_.terms);
      }
      WriteBlock(out_, offset, n, step, options.accumulate, totals);
    }
  }

  const SumPlan plan_;
  const ConstView* operands_[kOperands];
  const int count_;
  const View& out_;
  int64_t start_[kOperands + 1] = {};
  LoopDims<kOperands + 1> kept_, summed_;
  int64_t kept_reach_ = 0, summed_reach_ = 0;  // of the last dim of each kind
};

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
