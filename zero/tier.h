// SPDX-License-Identifier: Apache-2.0
// Where optimizer states and master weights rest. The step reaches them in no other way: it fetches a range, updates it,
// stores it. On the device itself a fetch is a view and a store does nothing; elsewhere it is a copy on its way.
//
//   TierRange range = tier.Fetch(unit, begin, numel);
//   optimizer.Update({.master = range.master.Write(), ...}, scalars);
//   tier.Store(unit, begin, range);
//
// Ranges are in elements of what this rank updates of a unit's trainable segment (its slice; at stage 0 all of it).
// At most one range is out at a time unless a tier says otherwise; what was fetched is invalid after its store.
#pragma once

#include <array>
#include <vector>

#include "optim/flat_span.h"
#include "tensor/tensor.h"

namespace tessera::zero {

struct TierRange {
  Tensor master;  // undefined where the parameter is its own master
  std::array<Tensor, optim::kMaxStates> states;
};

// What a tier is to hold, for each unit the same kinds of values.
struct TierContent {
  std::vector<int64_t> unit_numel;
  DType dtype = DType::kF32;
  bool has_master = false;
  int state_count = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  virtual TierRange Fetch(int unit, int64_t begin, int64_t numel) = 0;
  virtual void Store(int unit, int64_t begin, const TierRange& range) = 0;
};

// Everything in this rank's own memory. States begin as zeros, masters undefined: write them first.
class DeviceTier final : public Tier {
 public:
  explicit DeviceTier(const TierContent& content);
  TierRange Fetch(int unit, int64_t begin, int64_t numel) override;
  void Store(int unit, int64_t begin, const TierRange& range) override;

 private:
  std::vector<TierRange> units_;
};

}  // namespace tessera::zero
