// SPDX-License-Identifier: Apache-2.0
// A tier that keeps its values out of reach: a fetch copies them to fresh memory, a store copies them back and fills what
// was handed out with NaN. Whatever works with it would work with states on another device.
#pragma once

#include <cmath>

#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "zero/tier.h"

namespace tessera::testing {

class CopyingTier final : public zero::Tier {
 public:
  explicit CopyingTier(const zero::TierContent& content) : rest_(content) {}

  zero::TierRange Fetch(int unit, int64_t begin, int64_t numel) override {
    const zero::TierRange rest = rest_.Fetch(unit, begin, numel);
    zero::TierRange out;
    if (rest.master.defined()) out.master = CopyTo(rest.master, rest.master.dtype(), MemoryTag::kStaging);
    for (size_t i = 0; i < rest.states.size(); ++i) {
      if (rest.states[i].defined()) out.states[i] = CopyTo(rest.states[i], rest.states[i].dtype(), MemoryTag::kStaging);
    }
    return out;
  }

  void Store(int unit, int64_t begin, const zero::TierRange& range) override {
    const Tensor& any = range.master.defined() ? range.master : range.states[0];
    if (!any.defined()) return;
    const zero::TierRange rest = rest_.Fetch(unit, begin, any.numel());
    Return(range.master, rest.master);
    for (size_t i = 0; i < rest.states.size(); ++i) Return(range.states[i], rest.states[i]);
  }

 private:
  static void Return(const Tensor& from, const Tensor& to) {
    if (!from.defined()) return;
    ops::Copy({.x = from.Read(), .out = to.Write()});
    ops::Fill({.out = from.Write(), .value = std::nan("")});
  }
  zero::DeviceTier rest_;
};

}  // namespace tessera::testing
