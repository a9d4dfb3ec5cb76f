// SPDX-License-Identifier: Apache-2.0
#include "nn/parameter.h"

#include "nn/module.h"

namespace tessera::nn {

Parameter::Parameter(Module* owner, std::string name, const Shape& shape, const Init& init)
    : owner_(owner), name_(std::move(name)), shape_(shape), init_(init) {
  path_ = owner->path().empty() ? name_ : owner->path() + "." + name_;
  owner->RegisterParameter(this);
}

DType Parameter::dtype() const { return RequireManager().dtype(*this); }

void Parameter::SetRequiresGrad(bool requires_grad) {
  if (manager_ != nullptr) {
    throw Error(Str("parameter '", path_, "': freeze or unfreeze it before a manager adopts the model"));
  }
  requires_grad_ = requires_grad;
}

Parameter& Parameter::SetNoDecay() {
  if (manager_ != nullptr) {
    throw Error(Str("parameter '", path_, "': SetNoDecay must come before a manager adopts the model"));
  }
  decay_ = false;
  return *this;
}

ParamManager& Parameter::RequireManager() const {
  if (manager_ == nullptr) {
    throw Error(Str("parameter '", path_,
                    "' has no data yet: let a manager adopt the model first (nn::ResidentManager, or "
                    "an engine)"));
  }
  return *manager_;
}

ParamLease Parameter::Gather() { return ParamLease(*this); }
void Parameter::Edit(FunctionRef<void(Tensor&)> edit) { RequireManager().Edit(*this, edit); }
Tensor Parameter::Data() { return RequireManager().Data(*this); }
GradTarget Parameter::NextGradTarget() { return RequireManager().NextGradTarget(*this); }
void Parameter::GradReady() { RequireManager().GradReady(*this); }

ParamLease::ParamLease(Parameter& parameter) : parameter_(parameter) {
  if (parameter.manager() == nullptr) parameter.Data();  // throws with the reason
  parameter.manager()->Acquire(parameter);
}
ParamLease::~ParamLease() { parameter_.manager()->Release(parameter_); }

}  // namespace tessera::nn
