// SPDX-License-Identifier: Apache-2.0
#include "zero/partition.h"

#include <algorithm>

namespace tessera::zero {
namespace {

std::vector<PartitionUnit> SplitUnits(const nn::Module& root, const ZeroConfig& config) {
  PartitionUnit persistent{.name = "persistent parameters", .persistent = true};
  std::vector<PartitionUnit> units;
  int64_t persistent_numel = 0;
  for (nn::Unit& found : nn::FindUnits(root)) {
    PartitionUnit unit{.name = std::move(found.name), .modules = std::move(found.modules)};
    for (nn::Parameter* parameter : found.parameters) {
      const bool small = parameter->numel() <= config.param_persistence_threshold &&
                         config.param_persistence_threshold > 0 &&
                         persistent_numel + parameter->numel() <= config.model_persistence_threshold;
      if (small) persistent_numel += parameter->numel();
      (small ? persistent : unit).parameters.push_back(parameter);
    }
    if (!unit.parameters.empty()) units.push_back(std::move(unit));
  }
  if (!persistent.parameters.empty()) units.push_back(std::move(persistent));
  return units;
}

std::vector<std::vector<nn::FlatParamSpec>> Specs(const std::vector<PartitionUnit>& units) {
  std::vector<std::vector<nn::FlatParamSpec>> specs;
  for (const PartitionUnit& unit : units) {
    specs.emplace_back();
    for (const nn::Parameter* parameter : unit.parameters) {
      specs.back().push_back({parameter->path(), parameter->numel(), parameter->requires_grad()});
    }
  }
  return specs;
}

}  // namespace

Partition::Partition(const nn::Module& root, const ZeroConfig& config, int world_size, DType dtype)
    : dtype_(dtype), units_(SplitUnits(root, config)), layout_(Specs(units_), world_size, ItemSize(dtype)) {
  for (const PartitionUnit& unit : units_) {
    parameters_.insert(parameters_.end(), unit.parameters.begin(), unit.parameters.end());
  }
  for (int unit = 0; unit < unit_count(); ++unit) {
    for (Segment which : kSegments) {
      for (const nn::FlatParam& param : segment(unit, which).params) {
        const int index = static_cast<int>(param.param);
        places_.emplace(parameters_[static_cast<size_t>(index)],
                        ParamPlace{.index = index, .unit = unit, .segment = which, .offset = param.offset});
      }
    }
  }
  AddScopes(root);
}

void Partition::AddScopes(const nn::Module& module) {
  std::vector<int>& needed = scopes_[&module];
  for (int unit = 0; unit < unit_count(); ++unit) {
    const std::vector<const nn::Module*>& roots = units_[static_cast<size_t>(unit)].modules;
    if (std::find(roots.begin(), roots.end(), &module) != roots.end()) needed.push_back(unit);
  }
  for (const auto* list : {&module.own_parameters(), &module.used_parameters()}) {
    for (const nn::Parameter* parameter : *list) needed.push_back(place(*parameter).unit);
  }
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  for (const nn::Module* child : module.children()) AddScopes(*child);
}

int64_t Partition::UnitNumel(int unit) const {
  return segment(unit, Segment::kTrainable).numel + segment(unit, Segment::kFrozen).numel;
}

const ParamPlace& Partition::place(const nn::Parameter& parameter) const {
  const auto it = places_.find(&parameter);
  if (it == places_.end()) throw Error(Str("parameter '", parameter.path(), "' is not part of this engine's model"));
  return it->second;
}

const nn::Parameter* Partition::ParameterAt(int unit, int64_t element) const {
  for (const nn::FlatParam& param : segment(unit, Segment::kTrainable).params) {
    if (element >= param.offset && element < param.offset + param.numel) {
      return parameters_[static_cast<size_t>(param.param)];
    }
  }
  return nullptr;
}

const std::vector<int>& Partition::UnitsOfScope(const nn::Module& module) const { return scopes_.at(&module); }

std::vector<DecayRun> Partition::DecayRuns(int unit, int64_t begin, int64_t numel) const {
  const int64_t end = begin + numel;
  std::vector<DecayRun> runs;
  for (const nn::FlatParam& param : segment(unit, Segment::kTrainable).params) {
    const int64_t first = std::max(begin, param.offset), last = std::min(end, param.offset + param.numel);
    if (first >= last) continue;
    const bool decay = parameters_[static_cast<size_t>(param.param)]->decay();
    if (!runs.empty() && runs.back().decay == decay) {
      runs.back().numel = last - runs.back().begin;
    } else {
      runs.push_back({.begin = first, .numel = last - first, .decay = decay});
    }
  }
  return runs;
}

}  // namespace tessera::zero
