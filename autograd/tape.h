// SPDX-License-Identifier: Apache-2.0
// The tape: a list of nodes in the order they ran, walked in strict reverse by Backward.
//
//   Tape tape;                                  // recording starts on this thread
//   Tensor loss = Mean(Square(model(x)));
//   tape.Backward(loss);                        // gradients are in the parameters' buffers; the tape is spent
//
// Without an open tape nothing is recorded, so evaluation keeps nothing alive.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "autograd/node.h"
#include "autograd/scope.h"

namespace tessera {

class Tape {
 public:
  // Becomes this thread's current tape until it is spent or destroyed. A tape opened while another one records is an
  // error: two model calls before one Backward share the first.
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // The tape that records on this thread now; null without one, and inside NoGrad.
  static Tape* Current();

  // The same data as a tracked leaf, whose gradient Grad() returns after Backward (undefined if none reached it).
  Tensor Watch(const Tensor& x);
  Tensor Grad(const Tensor& watched) const;

  // From a scalar with seed 1, from one tensor with a given gradient, or from several. Frees each node, what it saved and
  // its gradient as it goes. A second call throws: the graph is freed.
  void Backward(const Tensor& loss);
  void Backward(const Tensor& output, const Tensor& gradient);
  void Backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients);

  bool spent() const { return spent_; }
  int64_t node_count() const { return static_cast<int64_t>(nodes_.size()); }

  // For differentiable functions: keeps the node, and makes the outputs tracked.
  void Record(std::unique_ptr<Node> node, std::initializer_list<const Input*> inputs,
              std::initializer_list<Tensor*> outputs) {
    Record(std::move(node), std::span(inputs.begin(), inputs.size()), std::span(outputs.begin(), outputs.size()));
  }
  void Record(std::unique_ptr<Node> node, std::span<const Input* const> inputs, std::span<Tensor* const> outputs);

 private:
  friend class BackwardContext;
  friend class CheckpointNode;
  friend class ScopeGuard;
  friend Tape* RecordingTape(std::span<const Input* const> inputs);

  struct Slot {
    Tensor grad;
    bool keep = false;  // a watched leaf
  };
  struct Scope {
    ScopeOwner* owner = nullptr;
    uint32_t parent = 0;
    uint32_t depth = 0;
  };
  struct ChildOf {
    Tape* parent;
  };
  explicit Tape(ChildOf child);  // for Checkpoint's recompute

  uint32_t OpenScope(ScopeOwner& owner, uint32_t parent);
  void AddObserver(TapeObserver* observer);
  void CountUse(ParamSource* source);
  void ReleaseUse(ParamSource* source);
  void AddToSlot(uint32_t slot, Tensor grad);
  void SetSeeds(std::span<const Tensor> outputs, std::span<const Tensor> gradients);
  void Run();
  void RunNode(Node& node);
  void MoveToScope(uint32_t* current, uint32_t target);
  void Close();  // stops recording
  void Discard(bool in_backward) noexcept;

  uint32_t id_;
  Tape* parent_ = nullptr;  // set for the child tape of a Checkpoint
  Tape* root_ = this;
  bool spent_ = false;
  bool open_ = false;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Slot> slots_;
  std::vector<Scope> scopes_;
  std::vector<TapeObserver*> observers_;
  std::vector<ParamSource*> sources_;  // root only: every source with a counted use
};

// The tape that a function with these inputs must record on: null when none is open, or nothing is tracked. Throws when a
// tracked tensor belongs to another tape. Absent inputs are passed over.
Tape* RecordingTape(std::span<const Input* const> inputs);
inline Tape* RecordingTape(std::initializer_list<const Input*> inputs) {
  return RecordingTape(std::span(inputs.begin(), inputs.size()));
}

// Backward on this thread's current tape; throws when none is open.
void Backward(const Tensor& loss);

// Pauses recording on this thread.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
  static bool active();  // on this thread

 private:
  uint8_t previous_mode_;
};

// What this thread's autograd is doing. Internal to autograd/; exposed for its own files.
namespace internal {

enum class Mode : uint8_t {
  kIdle,    // no tape, or paused, or inside backward
  kRecord,  // on `tape`
  kTouch,   // first pass of a Checkpoint: only the parameters that are used are written down
};
struct ThreadState {
  Mode mode = Mode::kIdle;
  Phase phase = Phase::kForward;
  Tape* tape = nullptr;
  uint32_t scope = 0;
  std::vector<ParamSource*>* touched = nullptr;
  int32_t no_grad_depth = 0;
};
ThreadState& State();

}  // namespace internal
}  // namespace tessera
