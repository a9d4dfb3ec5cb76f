// SPDX-License-Identifier: Apache-2.0
// One flat range of weights that an optimizer updates. What a range is (a parameter, a unit's shard, a chunk of a tier)
// is the caller's business: an element's update depends on nothing but its own operands and the step's scalars.
//
//   FlatSpan span{.master = weights.Write(), .gradient = grads.Read(), .states = {m.Write(), v.Write()}};
//   optimizer->Update(span, scalars);
//
// All views are of rank 1, contiguous, of one length (0 is legal), disjoint, on one device. A view is borrowed memory:
// whoever hands it out keeps the tensor alive, and has counted the write.
#pragma once

#include <array>

#include "tensor/tensor.h"

namespace tessera::optim {

inline constexpr int kMaxStates = 2;

struct FlatSpan {
  View master;         // f32 or f64; in f32 training the parameter itself
  ConstView gradient;  // f32, bf16, f16 or f64, still multiplied by the loss scale
  // The first state_count(), in the order of state_names(), of master's dtype.
  std::array<View, kMaxStates> states = {};
  View low_precision = {};  // optional: bf16 or f16 weights, set to the new master rounded to nearest even
  bool decay = true;        // weight decay applies (biases and norms often want none)
};

}  // namespace tessera::optim
