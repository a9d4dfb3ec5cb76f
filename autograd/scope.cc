// SPDX-License-Identifier: Apache-2.0
#include "autograd/scope.h"

#include "autograd/tape.h"

namespace tessera {

using internal::State;
using internal::ThreadState;

std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
  }
  return "?";
}

ScopeGuard::ScopeGuard(ScopeOwner& owner)
    : owner_(owner), error_scope_(&owner.scope_path()), phase_(State().phase), previous_scope_(State().scope) {
  ThreadState& state = State();
  if (state.tape != nullptr) {
    if (state.mode == internal::Mode::kRecord) {
      state.scope = state.tape->OpenScope(owner, previous_scope_);
    } else {
      state.tape->AddObserver(owner.observer());
    }
  }
  if (TapeObserver* observer = owner.observer()) observer->OnEnter(owner, phase_);
}

ScopeGuard::~ScopeGuard() {
  if (TapeObserver* observer = owner_.observer()) observer->OnExit(owner_, phase_);
  State().scope = previous_scope_;
}

}  // namespace tessera
