// SPDX-License-Identifier: Apache-2.0
// A flat range of trainable parameters with its gradient: what a manager hands to an optimizer, and all that either needs
// to know of the other.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace tessera {

struct ParamRange {
  std::string first_path;  // of the first parameter in it, for messages
  Tensor param;            // (numel), contiguous
  Tensor grad;             // (numel), contiguous; may be of another dtype
  bool decay = true;       // weight decay applies
};

}  // namespace tessera
