// SPDX-License-Identifier: Apache-2.0
// A manager that takes the contract of nn/param_manager.h at its word, so that whatever runs under it would run sharded.
//
// A parameter's data exists only between the enter and the exit of a scope that owns or uses it, under a lease, and in
// backward from the first ask to the exit of the scope that asked. Every gather comes at a new address; released memory is
// filled with NaN and kept until the manager dies, so that a stale view reads NaN and never somebody else's numbers.
// Every gradient target is a new buffer, garbage-filled and padded, in another dtype on request; at GradReady it is added
// to the parameter's own gradient and poisoned. Writes to released memory are found by FinishGradients.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "tensor/param_range.h"

namespace tessera::testing {

struct PoisoningOptions {
  DType dtype = DType::kF32;
  DType target_dtype = DType::kF32;  // of the gradient targets
  uint64_t seed = 0;
};

class PoisoningManager final : public nn::ParamManager {
 public:
  explicit PoisoningManager(nn::Module& root, const PoisoningOptions& options = {});
  ~PoisoningManager() override;

  Tensor Data(nn::Parameter& parameter) override;
  GradTarget NextGradTarget(nn::Parameter& parameter) override;
  void GradReady(nn::Parameter& parameter) override;
  DType dtype(const nn::Parameter&) const override { return options_.dtype; }
  void Acquire(nn::Parameter& parameter) override;
  void Release(nn::Parameter& parameter) noexcept override;
  void Edit(nn::Parameter& parameter, FunctionRef<void(Tensor&)> edit) override;

  void OnEnter(ScopeOwner& scope, Phase phase) override;
  void OnExit(ScopeOwner& scope, Phase phase) noexcept override;
  void OnRecomputeBegin() override;
  void OnRecomputeEnd() noexcept override;
  void OnBackwardBegin(std::span<ParamSource* const> used) override;
  void OnBackwardEnd() override;
  void OnDiscard(bool in_backward) noexcept override;

  // One range per trainable parameter, on memory of the manager's own: the "shard" that an optimizer updates.
  std::vector<ParamRange> FinishGradients();
  Tensor Gradient(const nn::Parameter& parameter) { return record(parameter).grad; }

  int gathers(const nn::Parameter& parameter, Phase phase) {
    return record(parameter).gathers[static_cast<int>(phase)];
  }
  int ready_count(const nn::Parameter& parameter) { return record(parameter).ready; }
  void ResetCounts();
  int alive_gathers() const { return alive_; }

 private:
  struct Record {
    nn::Parameter* parameter = nullptr;
    Tensor shard, grad;  // the resting data, and the gradient of the window
    Tensor gathered;     // undefined at rest
    int leases = 0;
    Tensor target;  // of the present backward
    bool has_grad = false;
    int gathers[3] = {};
    int ready = 0;
  };
  Record& record(const nn::Parameter& parameter);
  void Lease(Record& record, Phase phase);
  void Drop(Record& record) noexcept;
  void Bury(Tensor memory);

  nn::Module& root_;
  PoisoningOptions options_;
  std::map<const nn::Parameter*, Record> records_;
  std::vector<Tensor> graveyard_;  // released memory, full of NaN
  // One list of leases per scope that backward has entered, and one per Checkpoint that is being recomputed.
  std::vector<std::vector<Record*>> backward_scopes_{{}};
  std::vector<std::vector<Record*>> recomputes_;
  bool in_backward_ = false;
  int alive_ = 0;
};

}  // namespace tessera::testing
