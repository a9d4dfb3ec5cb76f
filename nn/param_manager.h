// SPDX-License-Identifier: Apache-2.0
// Who holds the parameters of a model. `nn` declares what a manager does and knows none but the plain one
// (ResidentManager); a sharded one lives above.
//
// The contract, which the tests' poisoning manager takes at its word: a parameter's data exists between the enter and the
// exit of a scope that owns it or says Uses(), under a lease, and in backward from the first time a node asks until the
// scope that asked is left. At any other time Data() throws Error with the path.
#pragma once

#include "autograd/param.h"
#include "autograd/scope.h"
#include "tensor/function_ref.h"

namespace tessera::nn {

class Parameter;

class ParamManager : public TapeObserver {
 public:
  virtual Tensor Data(Parameter& parameter) = 0;
  virtual GradTarget NextGradTarget(Parameter& parameter) = 0;
  virtual void GradReady(Parameter& parameter) = 0;
  virtual DType dtype(const Parameter& parameter) const = 0;

  // A lease keeps the full data available. Leases nest.
  virtual void Acquire(Parameter& parameter) = 0;
  virtual void Release(Parameter& parameter) noexcept = 0;
  // Lets `edit` change the full data and takes over what it wrote (master copies included).
  virtual void Edit(Parameter& parameter, FunctionRef<void(Tensor&)> edit) = 0;

  void OnEnter(ScopeOwner&, Phase) override {}
  void OnExit(ScopeOwner&, Phase) noexcept override {}
};

}  // namespace tessera::nn
