// SPDX-License-Identifier: Apache-2.0
// Module scopes: which module is running, in which phase. They carry the path of an error, and they are how a manager
// learns when a module's parameters come into use and go out of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tensor/error.h"

namespace tessera {

enum class Phase : uint8_t { kForward, kRecompute, kBackward };
std::string_view Name(Phase phase);

class ParamSource;
class ScopeOwner;

// What a manager of parameters hears. In backward, a scope is entered when its last node comes up and left after its
// first; a scope entered in recompute is followed by OnRecomputeEnd once that Checkpoint's backward is over, and what was
// gathered for it stays until then.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;
  virtual void OnEnter(ScopeOwner& scope, Phase phase) = 0;
  virtual void OnExit(ScopeOwner& scope, Phase phase) noexcept = 0;
  virtual void OnRecomputeBegin() {}
  virtual void OnRecomputeEnd() noexcept {}
  // `used`: every parameter with a gradient to come in this backward, each once; GradReady will be called for all of them.
  virtual void OnBackwardBegin(std::span<ParamSource* const> used) { (void)used; }
  virtual void OnBackwardEnd() {}
  // The tape ended without a complete backward: forget gradients and leases that belong to it. `in_backward` tells an
  // exception during backward from a tape that was thrown away after forward.
  virtual void OnDiscard(bool in_backward) noexcept { (void)in_backward; }
};

class ScopeOwner {
 public:
  virtual ~ScopeOwner() = default;
  virtual const std::string& scope_path() const = 0;
  virtual TapeObserver* observer() = 0;  // null: nobody listens
};

// Marks the run of a module on this thread: the path of errors, the stamp of nodes, the observer's enter and exit.
class ScopeGuard {
 public:
  explicit ScopeGuard(ScopeOwner& owner);
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  ScopeOwner& owner_;
  ErrorScope error_scope_;
  Phase phase_;
  uint32_t previous_scope_;
};

}  // namespace tessera
