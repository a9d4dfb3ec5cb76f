// SPDX-License-Identifier: Apache-2.0
// Dropout with masks that depend on (seed, step, micro-step, rank, path, call) alone: recompute repeats them, and nothing
// has to be saved to resume a run. Off in evaluation.
#pragma once

#include "nn/module.h"

namespace tessera::nn {

class Dropout final : public Layer<Dropout> {
 public:
  Dropout(Module* parent, std::string name, double p);
  Tensor Forward(const Tensor& x);
  double p() const { return p_; }

 private:
  double p_;
};

}  // namespace tessera::nn
