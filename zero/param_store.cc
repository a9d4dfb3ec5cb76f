// SPDX-License-Identifier: Apache-2.0
#include "zero/param_store.h"

#include <algorithm>

#include "tensor/ops/fill.h"

namespace tessera::zero {

Tensor FlatPart(const Tensor& flat, int64_t begin, int64_t numel) {
  return flat.WithLayout(Layout::Contiguous({numel}, flat.layout().offset() + begin));
}

ParamStore::ParamStore(const Partition& partition, int stage, int rank, uint64_t seed)
    : partition_(partition), rank_(rank), units_(static_cast<size_t>(partition.unit_count())) {
  for (int unit = 0; unit < partition.unit_count(); ++unit) {
    Unit& entry = units_[static_cast<size_t>(unit)];
    entry.whole = stage < 3 || partition.unit(unit).persistent || partition.world_size() == 1;
    for (Segment segment : kSegments) {
      Held& held = entry.segments[static_cast<size_t>(segment)];
      const int64_t numel = entry.whole ? partition.segment(unit, segment).numel : partition.SliceNumel(unit, segment);
      held.data = Zeros({numel}, partition.dtype(), MemoryTag::kParams);  // gaps and padding are zeros for ever
      held.label = std::make_unique<nn::FlatBufferLabel>(partition.parameters(), partition.segment(unit, segment),
                                                         ItemSize(partition.dtype()));
      if (entry.whole) held.data.storage()->SetLabel(held.label.get());
      Draw(unit, segment, seed);
    }
  }
}

ParamStore::~ParamStore() {
  for (const Unit& unit : units_) {  // tensors of the caller may outlive the labels
    for (const Held& held : unit.segments) held.data.storage()->SetLabel(nullptr);
  }
}

Tensor ParamStore::Slice(int unit, Segment segment) const {
  const Tensor& data = Whole(unit, segment);
  if (!IsWhole(unit)) return data;
  const int64_t numel = partition_.SliceNumel(unit, segment);
  return FlatPart(data, rank_ * numel, numel);
}

void ParamStore::Draw(int unit, Segment segment, uint64_t seed) {
  const bool whole = IsWhole(unit);
  const int64_t slice = partition_.SliceNumel(unit, segment);
  const int64_t begin = whole ? 0 : rank_ * slice,
                end = whole ? partition_.segment(unit, segment).numel : begin + slice;
  for (const nn::FlatParam& param : partition_.segment(unit, segment).params) {
    const int64_t first = std::max(begin, param.offset), last = std::min(end, param.offset + param.numel);
    if (first >= last) continue;
    const nn::Parameter& parameter = *partition_.parameters()[static_cast<size_t>(param.param)];
    FillInit(parameter.init(), seed, parameter.path(), first - param.offset,
             FlatPart(Whole(unit, segment), first - begin, last - first));
  }
}

}  // namespace tessera::zero
