// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: keep a function's inputs instead of what it computed, and run it again in backward.
// T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
//
//   x = Checkpoint([&](const Tensor& x) { return block(x); }, x);
//
// The function must do the same both times: random masks repeat by themselves, anything else it reads must not change. It
// may use parameters freely; a tracked tensor that it captures without taking it as an input is an error. What it
// captures by reference must live until Backward. Losses and gradients have the bits of the plain run.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace tessera {

class CheckpointFunction {
 public:
  virtual ~CheckpointFunction() = default;
  virtual std::vector<Tensor> Run(std::span<const Tensor> inputs) = 0;
};

// Any number of inputs and outputs.
std::vector<Tensor> Checkpoint(std::unique_ptr<CheckpointFunction> function, std::span<const Tensor> inputs);

namespace internal {

template <class F, size_t... I>
class CallableCheckpoint final : public CheckpointFunction {
 public:
  explicit CallableCheckpoint(F function) : function_(std::move(function)) {}
  std::vector<Tensor> Run(std::span<const Tensor> inputs) override { return {function_(inputs[I]...)}; }

 private:
  F function_;
};

template <class F, size_t... I>
Tensor CheckpointCall(F function, std::span<const Tensor> inputs, std::index_sequence<I...>) {
  return Checkpoint(std::make_unique<CallableCheckpoint<F, I...>>(std::move(function)), inputs)[0];
}

}  // namespace internal

// One output; the function takes the tensors one by one.
template <class F, class... Tensors>
Tensor Checkpoint(F function, const Tensor& first, const Tensors&... rest) {
  const Tensor inputs[] = {first, rest...};
  return internal::CheckpointCall(std::move(function), inputs, std::make_index_sequence<1 + sizeof...(rest)>());
}

}  // namespace tessera
