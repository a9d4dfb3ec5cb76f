// SPDX-License-Identifier: Apache-2.0
// The two models that golden traces exist for, behind one face, so that a test reads the same for both.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "autograd/loss.h"
#include "nn/module.h"

namespace tessera::testing {

struct TinyModel {
  std::unique_ptr<nn::Module> module;
  std::function<Loss(const Tensor&, const Tensor&)> loss;
};

// name: "gpt" or "llama".
TinyModel MakeTinyModel(const std::string& name, bool recompute, double dropout = 0);

}  // namespace tessera::testing
