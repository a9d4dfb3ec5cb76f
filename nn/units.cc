// SPDX-License-Identifier: Apache-2.0
#include "nn/units.h"

namespace tessera::nn {
namespace {

bool ContainsList(const Module& module) {
  if (module.is_list()) return true;
  for (const Module* child : module.children()) {
    if (ContainsList(*child)) return true;
  }
  return false;
}

struct Finder {
  std::vector<Unit> units;

  void Add(const Module& module, std::vector<Parameter*> parameters) {
    if (!parameters.empty()) units.push_back({module.path(), std::move(parameters), {&module}});
  }

  // The subtree's parameters but for those below a SetUnit(), which become units after this one.
  void Gather(const Module& module, std::vector<Parameter*>& parameters, std::vector<const Module*>& apart) {
    parameters.insert(parameters.end(), module.own_parameters().begin(), module.own_parameters().end());
    for (const Module* child : module.children()) {
      if (child->is_unit()) {
        apart.push_back(child);
      } else {
        Gather(*child, parameters, apart);
      }
    }
  }

  void Walk(const Module& module) {
    if (module.is_unit() || !ContainsList(module)) {
      std::vector<Parameter*> parameters;
      std::vector<const Module*> apart;
      Gather(module, parameters, apart);
      Add(module, std::move(parameters));
      for (const Module* child : apart) Walk(*child);
      return;
    }
    Add(module, module.own_parameters());
    for (const Module* child : module.children()) Walk(*child);
  }
};

int64_t Numel(const Unit& unit) {
  int64_t numel = 0;
  for (const Parameter* parameter : unit.parameters) numel += parameter->numel();
  return numel;
}

}  // namespace

std::vector<Unit> FindUnits(const Module& root, const UnitOptions& options) {
  Finder finder;
  finder.Walk(root);
  std::vector<Unit> merged;
  bool last_is_tiny = false;
  for (Unit& unit : finder.units) {
    const bool tiny = Numel(unit) < options.tiny_numel;
    if (tiny && last_is_tiny) {
      std::vector<Parameter*>& into = merged.back().parameters;
      into.insert(into.end(), unit.parameters.begin(), unit.parameters.end());
      merged.back().modules.insert(merged.back().modules.end(), unit.modules.begin(), unit.modules.end());
      last_is_tiny = Numel(merged.back()) < options.tiny_numel;
    } else {
      merged.push_back(std::move(unit));
      last_is_tiny = tiny;
    }
  }
  return merged;
}

}  // namespace tessera::nn
