// SPDX-License-Identifier: Apache-2.0
// Which parameters are gathered and reduced together, where each lies in its unit's flat buffer, and which slice of it
// belongs to which rank. One function of model, configuration and number of ranks: the same at every stage and on every
// rank, which is what makes stages comparable bit by bit.
//
//   Partition partition(model, config.zero, world_size, DType::kBF16);
//   for (int unit = 0; unit < partition.unit_count(); ++unit) partition.segment(unit, Segment::kTrainable).numel ...
//
// Units are those of nn/units.h, but for parameters of at most `param_persistence_threshold` elements: they form one more
// unit, the last, which stays gathered on every rank.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "nn/flat_layout.h"
#include "nn/units.h"
#include "zero/config.h"

namespace tessera::zero {

using nn::Segment;
inline constexpr Segment kSegments[] = {Segment::kTrainable, Segment::kFrozen};

struct PartitionUnit {
  std::string name;
  std::vector<nn::Parameter*> parameters;
  std::vector<const nn::Module*> modules;  // the roots of its subtrees; none for the persistent unit
  bool persistent = false;
};

struct ParamPlace {
  int index = 0;  // in parameters()
  int unit = 0;
  Segment segment = Segment::kTrainable;
  int64_t offset = 0;  // elements from the segment's start
};

// A run of a segment whose parameters agree on weight decay; alignment gaps between them included.
struct DecayRun {
  int64_t begin = 0, numel = 0;  // elements of the segment
  bool decay = true;
};

class Partition {
 public:
  Partition(const nn::Module& root, const ZeroConfig& config, int world_size, DType dtype);

  int world_size() const { return static_cast<int>(layout_.world_size()); }
  DType dtype() const { return dtype_; }
  int unit_count() const { return static_cast<int>(units_.size()); }
  const PartitionUnit& unit(int index) const { return units_[static_cast<size_t>(index)]; }
  const nn::FlatSegment& segment(int unit, Segment which) const {
    return layout_.units()[static_cast<size_t>(unit)].segment(which);
  }
  int64_t UnitNumel(int unit) const;  // both segments, with padding
  int64_t SliceNumel(int unit, Segment which) const { return layout_.SliceNumel(unit, which); }
  const nn::FlatLayout& layout() const { return layout_; }

  // In the numbering of the layout: by unit, then in registration order.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const ParamPlace& place(const nn::Parameter& parameter) const;  // throws for a parameter of another model
  bool Holds(const nn::Parameter& parameter) const { return places_.contains(&parameter); }
  // The parameter at an element of a unit's trainable segment; null in a gap.
  const nn::Parameter* ParameterAt(int unit, int64_t element) const;

  // The units that must be available while a module runs: that of its subtree, of its own parameters, of those it uses.
  const std::vector<int>& UnitsOfScope(const nn::Module& module) const;
  // The trainable segment's part [begin, begin + numel), in runs for the optimizer.
  std::vector<DecayRun> DecayRuns(int unit, int64_t begin, int64_t numel) const;

 private:
  void AddScopes(const nn::Module& module);

  DType dtype_;
  std::vector<PartitionUnit> units_;
  std::vector<nn::Parameter*> parameters_;
  nn::FlatLayout layout_;
  std::unordered_map<const nn::Parameter*, ParamPlace> places_;
  std::unordered_map<const nn::Module*, std::vector<int>> scopes_;
};

}  // namespace tessera::zero
