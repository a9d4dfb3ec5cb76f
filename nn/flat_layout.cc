// SPDX-License-Identifier: Apache-2.0
#include "nn/flat_layout.h"

#include <algorithm>

#include "tensor/error.h"

namespace tessera::nn {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

FlatLayout::FlatLayout(const std::vector<std::vector<FlatParamSpec>>& units, int64_t world_size, int64_t item_size)
    : world_size_(world_size), alignment_(std::max<int64_t>(128 / std::max<int64_t>(item_size, 1), 1)) {
  if (world_size < 1) throw Error(Str("flat_layout: world size ", world_size, " must be at least 1"));
  if (item_size < 1) throw Error(Str("flat_layout: item size ", item_size, " must be at least 1"));
  int64_t index = 0;
  for (const std::vector<FlatParamSpec>& specs : units) {
    FlatUnit unit;
    for (const FlatParamSpec& spec : specs) {
      if (spec.numel < 0) throw Error(Str("flat_layout: parameter '", spec.path, "' has ", spec.numel, " elements"));
      FlatSegment& segment = spec.trainable ? unit.trainable : unit.frozen;
      segment.params.push_back({.param = index++, .offset = RoundUp(segment.numel, alignment_), .numel = spec.numel});
      segment.numel = segment.params.back().offset + spec.numel;
      segment.payload_numel += spec.numel;
    }
    for (FlatSegment* segment : {&unit.trainable, &unit.frozen}) {
      segment->numel = RoundUp(segment->numel, alignment_ * world_size_);
    }
    units_.push_back(std::move(unit));
  }
}

int64_t FlatLayout::SliceNumel(int64_t unit, Segment segment) const {
  return units_[static_cast<size_t>(unit)].segment(segment).numel / world_size_;
}

std::vector<FlatOverlap> FlatLayout::Overlaps(int64_t unit, Segment which, int64_t rank) const {
  if (rank < 0 || rank >= world_size_) {
    throw Error(Str("flat_layout: rank ", rank, " is outside [0, ", world_size_, ")"));
  }
  const int64_t slice = SliceNumel(unit, which);
  const int64_t begin = rank * slice, end = begin + slice;
  std::vector<FlatOverlap> overlaps;
  for (const FlatParam& param : units_[static_cast<size_t>(unit)].segment(which).params) {
    const int64_t first = std::max(begin, param.offset), last = std::min(end, param.offset + param.numel);
    if (first >= last) continue;
    overlaps.push_back({.param = param.param,
                        .param_begin = first - param.offset,
                        .slice_begin = first - begin,
                        .numel = last - first});
  }
  return overlaps;
}

int64_t FlatLayout::TotalNumel(Segment segment) const {
  int64_t total = 0;
  for (const FlatUnit& unit : units_) total += unit.segment(segment).numel;
  return total;
}

}  // namespace tessera::nn
