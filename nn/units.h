// SPDX-License-Identifier: Apache-2.0
// Units: which parameters are gathered, reduced and released together.
//
// Each maximal subtree without a ModuleList inside is a unit (a block, an embedding, a norm, a head, at whatever depth the
// tree is wrapped). Parameters owned directly by a module that contains a list form another. Neighbours that are both tiny
// are merged. SetUnit() makes a subtree a unit of its own, inside or above that rule. A tied weight belongs to the unit of
// its first owner.
#pragma once

#include <string>
#include <vector>

#include "nn/module.h"

namespace tessera::nn {

struct Unit {
  std::string name;  // the path of its first module; "" for the root's own parameters
  std::vector<Parameter*> parameters;
  std::vector<const Module*> modules;  // the roots of its subtrees, in registration order: more than one when merged
};

struct UnitOptions {
  int64_t tiny_numel = 1024;  // neighbours below this many elements each are merged; 0 merges none
};

std::vector<Unit> FindUnits(const Module& root, const UnitOptions& options = {});

}  // namespace tessera::nn
