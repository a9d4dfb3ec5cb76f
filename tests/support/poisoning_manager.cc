// SPDX-License-Identifier: Apache-2.0
#include "tests/support/poisoning_manager.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"

namespace tessera::testing {
namespace {

constexpr int64_t kPadding = 32;  // elements of garbage before and after a ring buffer

void Poison(const Tensor& t) { ops::Fill({.out = t.Write(), .value = std::nan("")}); }

}  // namespace

PoisoningManager::PoisoningManager(nn::Module& root, const PoisoningOptions& options) : root_(root), options_(options) {
  for (nn::Parameter* parameter : root.parameters()) {
    Record record{.parameter = parameter};
    record.shard = Empty(parameter->shape(), options.dtype, MemoryTag::kParams);
    const Tensor flat = record.shard.WithLayout(Layout::Contiguous({parameter->numel()}));
    nn::FillInit(parameter->init(), options.seed, parameter->path(), 0, flat);
    if (parameter->requires_grad()) {
      record.grad = Empty(parameter->shape(), options.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
      Poison(record.grad);
    }
    records_.emplace(parameter, std::move(record));
  }
  nn::Adopt(root, this);
}

PoisoningManager::~PoisoningManager() { nn::Adopt(root_, nullptr); }

PoisoningManager::Record& PoisoningManager::record(const nn::Parameter& parameter) { return records_.at(&parameter); }

void PoisoningManager::Lease(Record& record, Phase phase) {
  if (record.leases++ > 0) return;
  ++record.gathers[static_cast<int>(phase)];
  ++alive_;
  record.gathered = EmptyOn(record.shard.device(), record.shard.shape(), record.shard.dtype(), MemoryTag::kGatherSlots);
  ops::Copy({.x = record.shard.Read(), .out = record.gathered.Write()});
}

void PoisoningManager::Drop(Record& record) noexcept {
  if (--record.leases > 0) return;
  --alive_;
  Bury(std::move(record.gathered));
  record.gathered = Tensor();
}

Tensor PoisoningManager::Data(nn::Parameter& parameter) {
  Record& entry = record(parameter);
  if (entry.leases == 0) {
    if (!in_backward_) {
      throw Error(Str("parameter '", parameter.path(),
                      "' is not gathered: read it in its module's forward, let the module "
                      "that uses it say Uses(), or hold a lease (auto w = p.Gather())"));
    }
    Lease(entry, Phase::kBackward);
    backward_scopes_.back().push_back(&entry);
  }
  return entry.gathered;
}

void PoisoningManager::OnEnter(ScopeOwner& scope, Phase phase) {
  auto& module = static_cast<nn::Module&>(scope);
  if (phase == Phase::kBackward) {
    backward_scopes_.emplace_back();
    return;
  }
  for (const auto* list : {&module.own_parameters(), &module.used_parameters()}) {
    for (nn::Parameter* parameter : *list) Lease(record(*parameter), phase);
  }
}

void PoisoningManager::OnExit(ScopeOwner& scope, Phase phase) noexcept {
  auto& module = static_cast<nn::Module&>(scope);
  if (phase == Phase::kBackward) {
    for (Record* entry : backward_scopes_.back()) Drop(*entry);
    backward_scopes_.pop_back();
    return;
  }
  for (const auto* list : {&module.own_parameters(), &module.used_parameters()}) {
    for (nn::Parameter* parameter : *list) {
      if (phase == Phase::kRecompute) {
        recomputes_.back().push_back(&record(*parameter));  // stays until its backward is over
      } else {
        Drop(record(*parameter));
      }
    }
  }
}

void PoisoningManager::OnRecomputeBegin() {
  in_backward_ = true;
  recomputes_.emplace_back();
}

void PoisoningManager::OnRecomputeEnd() noexcept {
  for (Record* entry : recomputes_.back()) Drop(*entry);
  recomputes_.pop_back();
}

void PoisoningManager::OnBackwardBegin(std::span<ParamSource* const>) { in_backward_ = true; }

void PoisoningManager::OnBackwardEnd() {
  in_backward_ = false;
  for (Record* entry : backward_scopes_.front()) Drop(*entry);
  backward_scopes_.assign(1, {});
}

void PoisoningManager::OnDiscard(bool in_backward) noexcept {
  in_backward_ = false;
  for (std::vector<Record*>& list : backward_scopes_) {
    for (Record* entry : list) Drop(*entry);
  }
  backward_scopes_.assign(1, {});
  for (auto& [parameter, entry] : records_) {
    entry.target = Tensor();
    if (in_backward) entry.has_grad = false;
  }
}

void PoisoningManager::Acquire(nn::Parameter& parameter) { Lease(record(parameter), Phase::kForward); }
void PoisoningManager::Release(nn::Parameter& parameter) noexcept { Drop(record(parameter)); }

void PoisoningManager::Edit(nn::Parameter& parameter, FunctionRef<void(Tensor&)> edit) {
  Record& entry = record(parameter);
  Lease(entry, Phase::kForward);
  edit(entry.gathered);
  ops::Copy({.x = entry.gathered.Read(), .out = entry.shard.Write()});
  Drop(entry);
}

void PoisoningManager::Bury(Tensor memory) {
  const Tensor all = memory.WithLayout(Layout::Contiguous({memory.storage()->bytes() / ItemSize(memory.dtype())}));
  Poison(all);
  graveyard_.push_back(all);
}

GradTarget PoisoningManager::NextGradTarget(nn::Parameter& parameter) {
  Record& entry = record(parameter);
  if (!parameter.requires_grad())
    throw Error(Str("'", parameter.path(), "' is frozen and was asked for a gradient target"));
  if (entry.target.defined()) return {entry.target, true};
  const DType dtype = options_.dtype == DType::kF64 ? DType::kF64 : options_.target_dtype;
  const Tensor buffer = Empty({parameter.numel() + 2 * kPadding}, dtype, MemoryTag::kGrads);
  Poison(buffer);
  entry.target = buffer.WithLayout(Layout::Contiguous(parameter.shape(), kPadding));
  return {entry.target, false};
}

void PoisoningManager::GradReady(nn::Parameter& parameter) {
  Record& entry = record(parameter);
  ++entry.ready;
  if (!entry.target.defined()) {  // no gradient reached it: a gradient of zero
    if (!entry.has_grad) ops::Fill({.out = entry.grad.Write(), .value = 0});
  } else {
    ops::Copy({.x = entry.target.Read(), .out = entry.grad.Write(), .accumulate = entry.has_grad});
    Bury(std::move(entry.target));
    entry.target = Tensor();
  }
  entry.has_grad = true;
}

std::vector<ParamRange> PoisoningManager::FinishGradients() {
  std::vector<ParamRange> ranges;
  for (nn::Parameter* parameter : root_.parameters()) {
    Record& entry = record(*parameter);
    if (!entry.grad.defined()) continue;
    if (!entry.has_grad) ops::Fill({.out = entry.grad.Write(), .value = 0});
    entry.has_grad = false;
    const Layout flat = Layout::Contiguous({parameter->numel()});
    ranges.push_back(
        {parameter->path(), entry.shard.WithLayout(flat), entry.grad.WithLayout(flat), parameter->decay()});
  }
  for (const Tensor& memory : graveyard_) {
    for (double value : memory.ToVector()) {
      if (!std::isnan(value)) {
        ADD_FAILURE() << "somebody wrote to memory of a parameter or a gradient after its release";
        break;
      }
    }
  }
  graveyard_.clear();
  return ranges;
}

void PoisoningManager::ResetCounts() {
  for (auto& [parameter, entry] : records_) {
    std::fill(std::begin(entry.gathers), std::end(entry.gathers), 0);
    entry.ready = 0;
  }
}

}  // namespace tessera::testing
