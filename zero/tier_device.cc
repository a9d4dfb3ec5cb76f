// SPDX-License-Identifier: Apache-2.0
#include "zero/param_store.h"
#include "zero/tier.h"

namespace tessera::zero {

DeviceTier::DeviceTier(const TierContent& content) {
  for (int64_t numel : content.unit_numel) {
    TierRange unit;
    if (content.has_master) unit.master = Empty({numel}, content.dtype, MemoryTag::kStates);
    for (int i = 0; i < content.state_count; ++i) {
      unit.states[static_cast<size_t>(i)] = Zeros({numel}, content.dtype, MemoryTag::kStates);
    }
    units_.push_back(std::move(unit));
  }
}

TierRange DeviceTier::Fetch(int unit, int64_t begin, int64_t numel) {
  const TierRange& all = units_[static_cast<size_t>(unit)];
  TierRange range;
  if (all.master.defined()) range.master = FlatPart(all.master, begin, numel);
  for (size_t i = 0; i < all.states.size(); ++i) {
    if (all.states[i].defined()) range.states[i] = FlatPart(all.states[i], begin, numel);
  }
  return range;
}

void DeviceTier::Store(int, int64_t, const TierRange&) {}

}  // namespace tessera::zero
