// SPDX-License-Identifier: Apache-2.0
// A parameter: declared by a module with a name, a shape and how to draw it; given memory when a manager adopts the tree.
//
//   struct Scale : nn::Layer<Scale> {
//     nn::Parameter weight{this, "weight", {768}, nn::Init::Ones()};
//     Tensor Forward(const Tensor& x) { return Mul(x, weight); }
//   };
//
// It is passed to functions as itself, never as a tensor: that is how a function can ask for the data again in backward.
#pragma once

#include <string>

#include "autograd/param.h"
#include "nn/init.h"
#include "nn/param_manager.h"

namespace tessera::nn {

class Module;
class ParamLease;
void Adopt(Module& root, ParamManager* manager);

class Parameter final : public ParamSource {
 public:
  Parameter(Module* owner, std::string name, const Shape& shape, const Init& init = Init::Zeros());
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  const std::string& path() const override { return path_; }  // from the root of the tree, without the root's own name
  const Shape& shape() const override { return shape_; }
  int64_t numel() const { return shape_.numel(); }
  DType dtype() const override;
  const Init& init() const { return init_; }
  Module& owner() const { return *owner_; }
  ParamManager* manager() const { return manager_; }

  bool requires_grad() const override { return requires_grad_; }
  // Before a manager adopts the tree; afterwards the layout of the units is fixed and this throws.
  void SetRequiresGrad(bool requires_grad);
  bool decay() const { return decay_; }
  Parameter& SetNoDecay();  // excludes it from weight decay

  operator Input() { return ParamRef(this); }  // NOLINT: implicit, so that functions take parameters as they are
  ParamRef Ref() { return ParamRef(this); }
  ParamRef Transpose(int dim0, int dim1) { return Ref().Transpose(dim0, dim1); }
  ParamRef Narrow(int dim, int64_t start, int64_t length) { return Ref().Narrow(dim, start, length); }

  // The full data, outside a module's forward: auto w = p.Gather(); w.data() ...
  ParamLease Gather();
  void Edit(FunctionRef<void(Tensor&)> edit);

  Tensor Data() override;
  GradTarget NextGradTarget() override;
  void GradReady() override;

 private:
  friend class Module;
  friend void Adopt(Module& root, ParamManager* manager);
  ParamManager& RequireManager() const;

  Module* owner_;
  std::string name_, path_;
  Shape shape_;
  Init init_;
  ParamManager* manager_ = nullptr;
  bool requires_grad_ = true;
  bool decay_ = true;
};

// Keeps a parameter gathered while it lives.
class ParamLease {
 public:
  explicit ParamLease(Parameter& parameter);
  ~ParamLease();
  ParamLease(const ParamLease&) = delete;
  ParamLease& operator=(const ParamLease&) = delete;
  Tensor data() const { return parameter_.Data(); }

 private:
  Parameter& parameter_;
};

}  // namespace tessera::nn
