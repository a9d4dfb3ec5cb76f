// SPDX-License-Identifier: Apache-2.0
// The plain manager: every parameter is whole and always there, in flat buffers by unit, with one gradient buffer beside
// each. It is how one trains without an engine, and the plain side of every comparison.
//
//   Mlp model;
//   nn::ResidentManager params(model, {.dtype = DType::kF32, .seed = 1});
//   optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{.lr = 1e-3}), params.ranges());
//   for (...) {
//     Tape tape;
//     Backward(CrossEntropy(model(x), y));
//     optimizer.Step(params.FinishGradients());
//   }
//
// Gradients of several backward passes add up until FinishGradients() closes the window. There is nothing to zero.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nn/flat_buffer_label.h"
#include "nn/flat_layout.h"
#include "nn/units.h"
#include "tensor/param_range.h"

namespace tessera::nn {

struct ResidentOptions {
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;  // ignored for f64 parameters, whose gradients are f64
  uint64_t seed = 0;
  UnitOptions units = {};
};

class ResidentManager final : public ParamManager {
 public:
  // Adopts the tree, makes its buffers on the current Context's device and draws the first values.
  explicit ResidentManager(Module& root, const ResidentOptions& options = {});
  ~ResidentManager() override;
  ResidentManager(const ResidentManager&) = delete;
  ResidentManager& operator=(const ResidentManager&) = delete;

  // The trainable parameters as flat ranges, cut where weight decay changes. Gradients are undefined until
  // FinishGradients().
  const std::vector<ParamRange>& ranges() const { return ranges_; }
  // Ends the window: parameters that no gradient reached since the last call get zeros, and the next backward starts anew.
  const std::vector<ParamRange>& FinishGradients();
  // One parameter's gradient as of now; undefined values before its first backward.
  Tensor Gradient(const Parameter& parameter) const;

  Tensor Data(Parameter& parameter) override;
  GradTarget NextGradTarget(Parameter& parameter) override;
  void GradReady(Parameter& parameter) override;
  DType dtype(const Parameter&) const override { return options_.dtype; }
  void Acquire(Parameter&) override {}
  void Release(Parameter&) noexcept override {}
  void Edit(Parameter& parameter, FunctionRef<void(Tensor&)> edit) override;
  void OnDiscard(bool in_backward) noexcept override;

 private:
  struct Held {
    Tensor data, grad;     // grad undefined when frozen
    bool written = false;  // a gradient came since the window began
  };
  Held& held(const Parameter& parameter);
  void MakeSegment(const std::vector<Parameter*>& all, const FlatSegment& segment, bool trainable);

  Module& root_;
  ResidentOptions options_;
  std::unordered_map<const Parameter*, Held> held_;
  std::vector<ParamRange> ranges_;
  std::vector<std::unique_ptr<FlatBufferLabel>> labels_;
};

}  // namespace tessera::nn
