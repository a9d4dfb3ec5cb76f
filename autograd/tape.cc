// SPDX-License-Identifier: Apache-2.0
#include "autograd/tape.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"

namespace tessera {

using internal::Mode;
using internal::State;
using internal::ThreadState;

namespace internal {
ThreadState& State() {
  thread_local ThreadState state;
  return state;
}
}  // namespace internal

namespace {

uint32_t NextTapeId() {
  static std::atomic<uint32_t> next{1};
  uint32_t id = next.fetch_add(1, std::memory_order_relaxed);
  while (id == 0) id = next.fetch_add(1, std::memory_order_relaxed);  // zero means untracked
  return id;
}

constexpr const char* kFreed =
    "backward: the graph is already freed: Backward ran on this tape once; run forward again under a new Tape";

}  // namespace

// ---- life ----

Tape::Tape() : id_(NextTapeId()) {
  ThreadState& state = State();
  if (state.tape != nullptr) {
    throw Error(
        "tape: another tape is open on this thread; calls before one Backward share it, so do not open a second");
  }
  slots_.emplace_back();   // slot 0: none
  scopes_.emplace_back();  // scope 0: outside any module
  state.tape = this;
  state.mode = Mode::kRecord;
  state.phase = Phase::kForward;
  state.scope = 0;
  open_ = true;
}

Tape::Tape(ChildOf child) : id_(NextTapeId()), parent_(child.parent), root_(child.parent->root_) {
  slots_.emplace_back();
  scopes_.emplace_back();
}

Tape::~Tape() {
  if (parent_ != nullptr) return;
  if (open_) Close();
  if (!spent_) Discard(/*in_backward=*/false);
}

Tape* Tape::Current() { return State().mode == Mode::kRecord ? State().tape : nullptr; }

void Tape::Close() {
  ThreadState& state = State();
  if (state.tape == this) {
    state.tape = nullptr;
    state.mode = Mode::kIdle;
    state.phase = Phase::kForward;
    state.scope = 0;
  }
  open_ = false;
}

void Tape::Discard(bool in_backward) noexcept {
  nodes_.clear();
  for (ParamSource* source : sources_) source->pending_uses_ = 0;
  sources_.clear();
  for (TapeObserver* observer : observers_) observer->OnDiscard(in_backward);
  spent_ = true;
}

// ---- recording ----

Tensor Tape::Watch(const Tensor& x) {
  if (spent_) throw Error("tape: Watch on a spent tape; open a new one");
  if (!IsFloating(x.dtype())) throw Error(Str("tape: Watch wants a floating tensor, got ", x));
  slots_.push_back({.grad = {}, .keep = true});
  return x.WithGradId({id_, static_cast<uint32_t>(slots_.size() - 1)});
}

Tensor Tape::Grad(const Tensor& watched) const {
  const GradId id = watched.grad_id();
  if (id.tape != id_ || !slots_[id.slot].keep) throw Error("tape: Grad wants a tensor that this tape's Watch returned");
  return slots_[id.slot].grad;
}

Tape* RecordingTape(std::span<const Input* const> inputs) {
  ThreadState& state = State();
  if (state.mode == Mode::kIdle) return nullptr;
  if (state.mode == Mode::kTouch) {
    for (const Input* input : inputs) {
      if (!input->tracked()) continue;
      if (!input->is_param()) {
        throw Error(Str("checkpoint: the function captured a tracked tensor (", *input->tensor(),
                        ") that is not in its list of inputs; list it, or Detach() it"));
      }
      state.touched->push_back(input->param().source());
    }
    return nullptr;
  }
  bool tracked = false;
  for (const Input* input : inputs) {
    if (!input->tracked()) continue;
    tracked = true;
    if (!input->is_param() && input->tensor()->grad_id().tape != state.tape->id_) {
      throw Error(Str("tape: a tracked tensor (", *input->tensor(),
                      ") belongs to another tape, spent or of another thread; Detach() it to use its value"));
    }
  }
  return tracked ? state.tape : nullptr;
}

void Tape::Record(std::unique_ptr<Node> node, std::span<const Input* const> inputs, std::span<Tensor* const> outputs) {
  node->edge_count_ = static_cast<uint32_t>(inputs.size());
  if (inputs.size() > Node::kInlineEdges) node->more_edges_.resize(inputs.size() - Node::kInlineEdges);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = *inputs[i];
    if (!input.tracked()) continue;
    Node::Edge& edge = i < Node::kInlineEdges ? node->edges_[i] : node->more_edges_[i - Node::kInlineEdges];
    edge.tracked = true;
    if (input.is_param()) {
      edge.param = std::make_unique<ParamRef>(input.param());
      CountUse(edge.param->source());
    } else {
      edge.slot = input.tensor()->grad_id().slot;
    }
  }
  node->scope_ = State().scope;
  node->first_output_ = static_cast<uint32_t>(slots_.size());
  node->output_count_ = static_cast<uint32_t>(outputs.size());
  for (Tensor* output : outputs) {
    *output = output->WithGradId({id_, static_cast<uint32_t>(slots_.size())});
    slots_.emplace_back();
  }
  nodes_.push_back(std::move(node));
}

void Tape::CountUse(ParamSource* source) {
  if (parent_ != nullptr) return;  // the first pass of the Checkpoint has counted it on the root
  if (source->pending_uses_++ == 0) sources_.push_back(source);
}

void Tape::ReleaseUse(ParamSource* source) {
  if (source->pending_uses_ <= 0) {
    throw Error(Str("checkpoint: the recomputed forward used parameter '", source->path(),
                    "' more often than the first one; the function must do the same every time"));
  }
  if (--source->pending_uses_ == 0) source->GradReady();
}

uint32_t Tape::OpenScope(ScopeOwner& owner, uint32_t parent) {
  scopes_.push_back({.owner = &owner, .parent = parent, .depth = scopes_[parent].depth + 1});
  AddObserver(owner.observer());
  return static_cast<uint32_t>(scopes_.size() - 1);
}

void Tape::AddObserver(TapeObserver* observer) {
  std::vector<TapeObserver*>& list = root_->observers_;
  if (observer != nullptr && std::find(list.begin(), list.end(), observer) == list.end()) list.push_back(observer);
}

// ---- backward ----

void Tape::Backward(const Tensor& loss) {
  if (spent_) throw Error(kFreed);
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(Str("backward: the loss must have one element, got ", loss, "; pass a gradient for other outputs"));
  }
  const Tensor seed = EmptyOn(loss.device(), loss.shape(), loss.dtype());
  ops::Fill({.out = seed.Write(), .value = 1});
  Backward(loss, seed);
}

void Tape::Backward(const Tensor& output, const Tensor& gradient) { Backward({&output, 1}, {&gradient, 1}); }

void Tape::Backward(std::span<const Tensor> outputs, std::span<const Tensor> gradients) {
  if (spent_) throw Error(kFreed);
  SetSeeds(outputs, gradients);
  if (open_) Close();
  try {
    for (TapeObserver* observer : observers_) observer->OnBackwardBegin(sources_);
    Run();
    for (const ParamSource* source : sources_) {
      if (source->pending_uses_ != 0) {
        throw Error(Str("checkpoint: the recomputed forward used parameter '", source->path(),
                        "' less often than the first one; the function must do the same every time"));
      }
    }
    sources_.clear();
    for (TapeObserver* observer : observers_) observer->OnBackwardEnd();
  } catch (...) {
    Discard(/*in_backward=*/true);
    throw;
  }
  spent_ = true;
}

void Tape::SetSeeds(std::span<const Tensor> outputs, std::span<const Tensor> gradients) {
  if (outputs.size() != gradients.size()) {
    throw Error(Str("backward: ", outputs.size(), " outputs and ", gradients.size(), " gradients"));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor &output = outputs[i], &gradient = gradients[i];
    if (!gradient.defined()) continue;
    if (output.grad_id().tape != id_) {
      throw Error(Str("backward: the output (", output,
                      ") is not tracked by this tape: no parameter and no watched tensor "
                      "led to it while the tape was open"));
    }
    if (output.shape() != gradient.shape() || output.dtype() != gradient.dtype()) {
      throw Error(Str("backward: the gradient (", gradient, ") must have the output's shape and dtype (", output, ")"));
    }
    AddToSlot(output.grad_id().slot, gradient.Detach());
  }
}

void Tape::Run() {
  ThreadState& state = State();
  const Phase outer_phase = state.phase;
  state.phase = Phase::kBackward;
  uint32_t scope = 0;
  try {
    while (!nodes_.empty()) {
      const std::unique_ptr<Node> node = std::move(nodes_.back());
      nodes_.pop_back();
      MoveToScope(&scope, node->scope_);
      const ErrorScope error_scope(scope == 0 ? nullptr : &scopes_[scope].owner->scope_path());
      RunNode(*node);
    }
    MoveToScope(&scope, 0);
  } catch (...) {
    for (; scope != 0; scope = scopes_[scope].parent) {
      if (TapeObserver* observer = scopes_[scope].owner->observer()) {
        observer->OnExit(*scopes_[scope].owner, Phase::kBackward);
      }
    }
    state.phase = outer_phase;
    throw;
  }
  state.phase = outer_phase;
}

void Tape::MoveToScope(uint32_t* current, uint32_t target) {
  uint32_t ancestor = target;
  while (ancestor != *current) {
    if (scopes_[ancestor].depth > scopes_[*current].depth) {
      ancestor = scopes_[ancestor].parent;
    } else {
      const Scope scope = scopes_[*current];
      *current = scope.parent;
      if (TapeObserver* observer = scope.owner->observer()) observer->OnExit(*scope.owner, Phase::kBackward);
    }
  }
  while (*current != target) {
    uint32_t next = target;
    while (scopes_[next].parent != *current) next = scopes_[next].parent;
    ScopeOwner& owner = *scopes_[next].owner;
    if (TapeObserver* observer = owner.observer()) observer->OnEnter(owner, Phase::kBackward);
    *current = next;
  }
}

void Tape::RunNode(Node& node) {
  BackwardContext ctx(*this, node);
  bool reached = false;
  ctx.output_grads_.reserve(node.output_count_);
  for (uint32_t i = 0; i < node.output_count_; ++i) {
    Slot& slot = slots_[node.first_output_ + i];
    reached |= slot.grad.defined();
    ctx.output_grads_.push_back(std::move(slot.grad));
    slot.grad = Tensor();
  }
  if (reached) node.Backward(ctx);
  for (uint32_t i = 0; i < node.edge_count_; ++i) {
    const Node::Edge& edge = node.edge(static_cast<int>(i));
    if (edge.tracked && edge.slot == 0) root_->ReleaseUse(edge.param->source());
  }
  if (!reached) {
    for (ParamSource* source : node.touched_) root_->ReleaseUse(source);
  }
}

void Tape::AddToSlot(uint32_t slot_index, Tensor grad) {
  Tensor& held = slots_[slot_index].grad;
  if (!held.defined()) {
    held = std::move(grad);
    return;
  }
  // The held gradient may be shared with another slot or a saved tensor; then the sum goes to memory of its own.
  if (held.storage().use_count() > 1 || held.layout().HasOverlap()) held = CopyTo(held, held.dtype());
  ops::Copy({.x = grad.Read(), .out = held.Write(), .accumulate = true});
}

const Tensor& BackwardContext::DenseOutputGrad(int index) {
  Tensor& grad = output_grads_[static_cast<size_t>(index)];
  if (grad.defined() && !grad.layout().HasDenseRows()) grad = CopyTo(grad, grad.dtype());
  return grad;
}

GradTarget BackwardContext::Target(int input, const Shape& shape, DType dtype) {
  const Node::Edge& edge = node_.edge(input);
  if (edge.slot == 0) return edge.param->NextGradTarget();
  Tensor& held = tape_.slots_[edge.slot].grad;
  if (!held.defined()) {
    Device device;
    for (const Tensor& grad : output_grads_) {
      if (grad.defined()) device = grad.device();
    }
    held = EmptyOn(device, shape, dtype);
    return {held, false};
  }
  if (held.storage().use_count() > 1 || !held.layout().IsContiguous()) held = CopyTo(held, dtype);
  return {held, true};
}

void BackwardContext::AddGrad(int input, Tensor grad) {
  const Node::Edge& edge = node_.edge(input);
  if (!edge.tracked) return;
  if (edge.slot != 0) {
    tape_.AddToSlot(edge.slot, std::move(grad));
    return;
  }
  const GradTarget target = edge.param->NextGradTarget();
  ops::Copy({.x = grad.Read(), .out = target.buffer.Write(), .accumulate = target.accumulate});
}

void Backward(const Tensor& loss) {
  Tape* tape = State().tape;
  if (tape == nullptr) throw Error("backward: no tape is open on this thread; open a Tape before forward");
  tape->Backward(loss);
}

// ---- guards ----

NoGrad::NoGrad() : previous_mode_(static_cast<uint8_t>(State().mode)) {
  State().mode = Mode::kIdle;
  ++State().no_grad_depth;
}
NoGrad::~NoGrad() {
  --State().no_grad_depth;
  // A tape that was spent or destroyed meanwhile must not come back to life.
  if (State().tape != nullptr) State().mode = static_cast<Mode>(previous_mode_);
}
bool NoGrad::active() { return State().no_grad_depth > 0; }

// ---- saved values ----

Saved::Saved(const Input& input) {
  if (input.is_param()) {
    param_ = std::make_unique<ParamRef>(input.param());
  } else if (input.present()) {
    *this = Saved(*input.tensor());
  }
}

Saved::Saved(const Tensor& tensor) : tensor_(tensor.Detach()) {
  if (!tensor.defined()) return;
  if (const StorageLabel* label = tensor.storage()->label()) {
    throw Error(Str("autograd: a plain tensor in the storage of parameter '",
                    label->ParameterAt(tensor.layout().offset() * ItemSize(tensor.dtype())),
                    "' would be saved for backward, when it may be gone; pass the Parameter itself"));
  }
  version_ = tensor.storage()->version();
}

Tensor Saved::Get(const char* op) const {
  if (is_param()) return param_->Data();
  if (!tensor_.defined()) return tensor_;
  if (tensor_.storage()->version() != version_) {
    throw Error(Str(op, ": a tensor saved for backward (", tensor_, ") was modified in place: it was at version ",
                    version_, " when saved and is at version ", tensor_.storage()->version(), " now"));
  }
  return tensor_;
}

}  // namespace tessera
