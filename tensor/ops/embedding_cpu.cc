// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise_cpu.h"
#include "tensor/ops/embedding.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// Element offset of place `index` of a layout, row-major over its first `dims` dimensions.
TESSERA_ALWAYS_INLINE int64_t OffsetOf(const Layout& layout, int64_t index, int dims) {
  int64_t offset = layout.offset();
  for (int dim = dims - 1; dim >= 0; --dim) {
    offset += index % layout.size(dim) * layout.stride(dim);
    index /= layout.size(dim);
  }
  return offset;
}

TESSERA_ALWAYS_INLINE int64_t IdAt(const ConstView& ids, int64_t position) {
  const int64_t offset = OffsetOf(ids.layout, position, ids.rank());
  return ids.dtype == DType::kI32 ? static_cast<const int32_t*>(ids.data)[offset]
                                  : static_cast<const int64_t*>(ids.data)[offset];
}

template <class T>
void Gather(const EmbeddingForwardArgs& args) {
  const T* weight = static_cast<const T*>(args.weight.data) + args.weight.layout.offset();
  T* y = static_cast<T*>(args.y.data);
  const int64_t width = args.weight.size(1);
  const int64_t row_step = args.weight.stride(0), from_step = args.weight.stride(1);
  const int64_t to_step = args.y.stride(args.y.rank() - 1);
  ParallelFor(args.ids.numel(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      const T* from = weight + IdAt(args.ids, position) * row_step;
      T* to = y + OffsetOf(args.y.layout, position, args.y.rank() - 1);
      if (from_step == 1 && to_step == 1) {
        for (int64_t c = 0; c < width; ++c) to[c] = from[c];
      } else {
        for (int64_t c = 0; c < width; ++c) to[c * to_step] = from[c * from_step];
      }
    }
  });
}

// The positions of each id as a list: first[v], then next[position] and so on, -1 at the end, in rising order.
struct Positions {
  int64_t* first;
  int64_t* next;
};

Positions ListPositions(const EmbeddingBackwardArgs& args) {
  const int64_t rows = args.dweight.size(0);
  const Positions lists{args.workspace.as<int64_t>(), args.workspace.as<int64_t>() + rows};
  for (int64_t v = 0; v < rows; ++v) lists.first[v] = -1;
  for (int64_t position = args.ids.numel() - 1; position >= 0; --position) {
    const int64_t v = IdAt(args.ids, position);
    lists.next[position] = lists.first[v];
    lists.first[v] = position;
  }
  return lists;
}

template <class A>
void Scatter(const EmbeddingBackwardArgs& args) {
  const Positions lists = ListPositions(args);
  const int64_t width = args.dweight.size(1), step = args.dweight.stride(1);
  const int outer = args.dy.rank() - 1;
  const int64_t dy_step = args.dy.stride(outer);
  ParallelFor(args.dweight.size(0), RowGrain(width), [&](int64_t begin, int64_t end) {
    alignas(64) A buffer[kBlock];
    alignas(64) double sum[kBlock];
    for (int64_t v = begin; v < end; ++v) {
      if (lists.first[v] < 0 && args.accumulate) continue;
      const int64_t row = args.dweight.layout.offset() + v * args.dweight.stride(0);
      ForEachBlock(width, [&](int64_t first, int64_t n) {
        for (int64_t c = 0; c < n; ++c) sum[c] = 0;
        for (int64_t position = lists.first[v]; position >= 0; position = lists.next[position]) {
          const int64_t offset = OffsetOf(args.dy.layout, position, outer) + first * dy_step;
          const A* dy = ReadBlock(args.dy, offset, n, dy_step, buffer);
          for (int64_t c = 0; c < n; ++c) sum[c] += static_cast<double>(dy[c]);
        }
        WriteBlock(args.dweight, row + first * step, n, step, args.accumulate, sum);
      });
    }
  });
}

}  // namespace

void EmbeddingForward(const EmbeddingForwardArgs& args) {
  DispatchAny(args.weight.dtype, [&](auto tag) { Gather<typename decltype(tag)::type>(args); });
}

void EmbeddingBackward(const EmbeddingBackwardArgs& args) {
  DispatchAccumulator(args.dy.dtype, [&](auto tag) { Scatter<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
