// SPDX-License-Identifier: Apache-2.0
// The module tree. Modules are immovable members that register by name with their parent in their constructors.
//
//   struct Mlp : nn::Layer<Mlp> {
//     nn::Linear up{this, "up", 512, 2048}, down{this, "down", 2048, 10};
//     Tensor Forward(const Tensor& x) { return down(Relu(up(x))); }
//   };
//   Mlp model;              // a root; nn::Linear above is a child
//   model(x);               // opens the scope, then runs Forward
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/scope.h"
#include "nn/parameter.h"

namespace tessera::nn {

// Where a module goes: under a parent by name, or, without one, at the root of a tree. A root's name is seen in error
// paths ("gpt.blocks.3.attn") and not in parameter paths.
struct Place {
  Module* parent = nullptr;
  std::string name;
};

class Module : public ScopeOwner {
 public:
  Module() = default;
  explicit Module(Place place);
  Module(Module* parent, std::string name) : Module(Place{parent, std::move(name)}) {}
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }
  const std::string& scope_path() const override { return scope_path_; }
  TapeObserver* observer() override { return manager_; }
  ParamManager* manager() const { return manager_; }

  const std::vector<Module*>& children() const { return children_; }
  const std::vector<Parameter*>& own_parameters() const { return parameters_; }
  const std::vector<Parameter*>& used_parameters() const { return uses_; }
  // All parameters below, in registration order; a tied weight appears once, where it is owned.
  std::vector<Parameter*> parameters() const;
  // By path below this module; throws with the nearest name when there is none.
  Parameter& parameter(std::string_view path) const;
  int64_t ParameterCount() const;
  int64_t TrainableParameterCount() const;

  // Says that this module's forward uses a parameter that another module owns (a tied head): it is gathered for this scope.
  void Uses(Parameter& parameter);
  // Makes this subtree one unit: gathered, reduced and released together. See nn/units.h for the default.
  void SetUnit() { is_unit_ = true; }
  bool is_unit() const { return is_unit_; }
  virtual bool is_list() const { return false; }

  void SetTraining(bool training);  // this and everything below
  bool training() const { return training_; }
  void SetRequiresGrad(bool requires_grad);  // of all parameters below

 private:
  friend class Parameter;
  friend void Adopt(Module& root, ParamManager* manager);
  void RegisterParameter(Parameter* parameter);
  void Collect(std::vector<Parameter*>& out) const;

  std::string path_, scope_path_;
  std::vector<Module*> children_;
  std::vector<std::string> child_names_;
  std::vector<Parameter*> parameters_, uses_;
  ParamManager* manager_ = nullptr;
  bool is_unit_ = false;
  bool training_ = true;
};

// Hands the tree to a manager (or takes it back with null). A tree has at most one at a time.
void Adopt(Module& root, ParamManager* manager);

// Base of every module: calling it opens its scope (path, gathers) and runs D::Forward.
template <class D>
class Layer : public Module {
 public:
  using Module::Module;

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    const ScopeGuard scope(*this);
    return static_cast<D*>(this)->Forward(std::forward<Args>(args)...);
  }
};

// A list of modules of one type, built in place: nn::ModuleList<Block> blocks{this, "blocks", 12, config};
template <class M>
class ModuleList final : public Module {
 public:
  template <class... Args>
  ModuleList(Module* parent, std::string name, int64_t count, const Args&... args) : Module(parent, std::move(name)) {
    for (int64_t i = 0; i < count; ++i) items_.push_back(std::make_unique<M>(this, std::to_string(i), args...));
  }
  bool is_list() const override { return true; }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  M& operator[](int64_t index) { return *items_[static_cast<size_t>(index)]; }

  class Iterator {
   public:
    explicit Iterator(const std::unique_ptr<M>* item) : item_(item) {}
    M& operator*() const { return **item_; }
    Iterator& operator++() {
      ++item_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return item_ != other.item_; }

   private:
    const std::unique_ptr<M>* item_;
  };
  Iterator begin() const { return Iterator(items_.data()); }
  Iterator end() const { return Iterator(items_.data() + items_.size()); }

 private:
  std::vector<std::unique_ptr<M>> items_;
};

}  // namespace tessera::nn
