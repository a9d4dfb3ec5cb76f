// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_order_sum.h"

#include <algorithm>
#include <cstring>

#include "tensor/ops/copy.h"

namespace tessera::comm {

void SumInRankOrder(DType dtype, std::span<const std::byte* const> sources, std::byte* out, int64_t count) {
  const int64_t item = ItemSize(dtype);
  if (count == 0) return;
  if (sources.size() == 1) {
    if (out != sources[0]) std::memcpy(out, sources[0], static_cast<size_t>(count * item));
    return;
  }
  // A block stays in the first cache while the ranks' values are added to it; the casts are the tensor kernels, which are
  // compiled for this machine. A block is one chunk of their loop, so they run on this thread alone.
  constexpr int64_t kBlock = 2048;
  alignas(64) std::byte sums[kBlock * sizeof(double)];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const Layout layout = Layout::Contiguous({std::min(kBlock, count - begin)});
    const View sum{sums, layout, AccumulationType(dtype), kCpu};
    for (size_t rank = 0; rank < sources.size(); ++rank) {
      ops::Copy({.x = {sources[rank] + begin * item, layout, dtype, kCpu}, .out = sum, .accumulate = rank > 0});
    }
    ops::Copy({.x = sum, .out = {out + begin * item, layout, dtype, kCpu}});
  }
}

}  // namespace tessera::comm
