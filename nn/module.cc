// SPDX-License-Identifier: Apache-2.0
#include "nn/module.h"

#include <algorithm>

#include "tensor/edit_distance.h"

namespace tessera::nn {
namespace {

void CheckName(const Module& parent, std::string_view name, const std::vector<std::string>& taken) {
  const std::string where = parent.scope_path().empty() ? "the root" : "'" + parent.scope_path() + "'";
  if (name.empty() || name.find('.') != std::string_view::npos) {
    throw Error(Str("module: '", name, "' under ", where, " is not a name: it must be non-empty and without dots"));
  }
  if (std::find(taken.begin(), taken.end(), name) != taken.end()) {
    throw Error(Str("module: ", where, " already has a child or parameter named '", name, "'"));
  }
}

}  // namespace

Module::Module(Place place) {
  Module* parent = place.parent;
  if (parent == nullptr) {
    scope_path_ = std::move(place.name);
    return;
  }
  if (parent->manager_ != nullptr) {
    throw Error(Str("module: '", place.name, "' comes too late: a manager has adopted the tree"));
  }
  CheckName(*parent, place.name, parent->child_names_);
  path_ = parent->path_.empty() ? place.name : parent->path_ + "." + place.name;
  scope_path_ = parent->scope_path_.empty() ? place.name : parent->scope_path_ + "." + place.name;
  parent->children_.push_back(this);
  parent->child_names_.push_back(std::move(place.name));
}

void Module::RegisterParameter(Parameter* parameter) {
  if (manager_ != nullptr) {
    throw Error(Str("module: parameter '", parameter->path(), "' comes too late: a manager has adopted the tree"));
  }
  CheckName(*this, parameter->name(), child_names_);
  parameters_.push_back(parameter);
  child_names_.push_back(parameter->name());
}

void Module::Collect(std::vector<Parameter*>& out) const {
  out.insert(out.end(), parameters_.begin(), parameters_.end());
  for (const Module* child : children_) child->Collect(out);
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> result;
  Collect(result);
  return result;
}

Parameter& Module::parameter(std::string_view path) const {
  const std::vector<Parameter*> all = parameters();
  const Parameter* nearest = nullptr;
  size_t best = 0;
  for (Parameter* parameter : all) {
    std::string_view below = parameter->path();
    if (!path_.empty()) below.remove_prefix(path_.size() + 1);
    if (below == path) return *parameter;
    const size_t distance = EditDistance(below, path);
    if (nearest == nullptr || distance < best) {
      nearest = parameter;
      best = distance;
    }
  }
  if (nearest == nullptr) throw Error(Str("parameter: no parameter '", path, "': the module has none"));
  throw Error(Str("parameter: no parameter '", path, "'; did you mean '", nearest->path(), "'?"));
}

int64_t Module::ParameterCount() const {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->numel();
  return count;
}

int64_t Module::TrainableParameterCount() const {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->requires_grad() ? parameter->numel() : 0;
  return count;
}

void Module::Uses(Parameter& parameter) { uses_.push_back(&parameter); }

void Module::SetTraining(bool training) {
  training_ = training;
  for (Module* child : children_) child->SetTraining(training);
}

void Module::SetRequiresGrad(bool requires_grad) {
  for (Parameter* parameter : parameters()) parameter->SetRequiresGrad(requires_grad);
}

void Adopt(Module& root, ParamManager* manager) {
  if (!root.path().empty())
    throw Error(Str("adopt: '", root.scope_path(), "' is part of a larger tree; adopt its root"));
  if (manager != nullptr && root.manager_ != nullptr) {
    throw Error("adopt: the model already has a manager; destroy that one first");
  }
  std::vector<Module*> pending = {&root};
  while (!pending.empty()) {
    Module* module = pending.back();
    pending.pop_back();
    module->manager_ = manager;
    for (Parameter* parameter : module->parameters_) parameter->manager_ = manager;
    pending.insert(pending.end(), module->children_.begin(), module->children_.end());
  }
}

}  // namespace tessera::nn
