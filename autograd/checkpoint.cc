// SPDX-License-Identifier: Apache-2.0
#include "autograd/checkpoint.h"

#include "autograd/tape.h"
#include "tensor/context.h"

namespace tessera {

using internal::Mode;
using internal::State;
using internal::ThreadState;

namespace {

// The random streams at the start of the first pass, put back for the time of the recompute.
struct RandomPosition {
  int64_t step, micro_step, rank;
  uint64_t calls;

  static RandomPosition Now() {
    const Context& context = CurrentContext();
    return {context.step, context.micro_step, context.rank, context.random_calls};
  }
  void Set() const {
    Context& context = CurrentContext();
    context.step = step;
    context.micro_step = micro_step;
    context.rank = rank;
    context.random_calls = calls;
  }
};

// Sets the thread's state for a while and puts the old one back, exceptions included.
class StateGuard {
 public:
  explicit StateGuard(const ThreadState& state) : previous_(State()) { State() = state; }
  ~StateGuard() { State() = previous_; }
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;

 private:
  ThreadState previous_;
};

}  // namespace

class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::unique_ptr<CheckpointFunction> function, std::span<const Tensor> inputs, RandomPosition random)
      : function_(std::move(function)), random_(random) {
    for (const Tensor& input : inputs) {
      inputs_.emplace_back(input);
      tracked_.push_back(input.tracked());
    }
  }

  // The uses of parameters that the first pass made: counted on the root here, released by the child's nodes, or by the
  // tape when no gradient reaches this node.
  static void CountUses(Tape& tape, std::unique_ptr<CheckpointNode>& node, std::vector<ParamSource*> touched) {
    for (ParamSource* source : touched) tape.CountUse(source);
    node->touched_ = std::move(touched);
  }

  const char* name() const override { return "checkpoint"; }

  void Backward(BackwardContext& ctx) override {
    Tape& parent = ctx.tape_;
    Tape child{Tape::ChildOf{&parent}};
    struct RecomputeScope {
      Tape& root;
      explicit RecomputeScope(Tape& tape) : root(tape) {
        for (TapeObserver* observer : root.observers_) observer->OnRecomputeBegin();
      }
      ~RecomputeScope() {
        for (TapeObserver* observer : root.observers_) observer->OnRecomputeEnd();
      }
    } recompute(*parent.root_);

    std::vector<Tensor> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor input = inputs_[i].Get(name());
      inputs.push_back(tracked_[i] ? child.Watch(input) : input);
    }
    std::vector<Tensor> outputs, gradients;
    {
      const RandomPosition now = RandomPosition::Now();
      random_.Set();
      const StateGuard guard({.mode = Mode::kRecord, .phase = Phase::kRecompute, .tape = &child});
      outputs = function_->Run(inputs);
      now.Set();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      // An output that nothing tracked led to has no one to pass its gradient to.
      gradients.push_back(outputs[i].tracked() ? ctx.OutputGrad(static_cast<int>(i)) : Tensor());
    }
    child.SetSeeds(outputs, gradients);
    outputs.clear();
    gradients.clear();
    child.Run();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!tracked_[i]) continue;
      const Tensor grad = child.Grad(inputs[i]);
      if (grad.defined()) ctx.AddGrad(static_cast<int>(i), grad);
    }
    child.spent_ = true;
  }

 private:
  std::unique_ptr<CheckpointFunction> function_;
  std::vector<Saved> inputs_;
  std::vector<bool> tracked_;
  RandomPosition random_;
};

std::vector<Tensor> Checkpoint(std::unique_ptr<CheckpointFunction> function, std::span<const Tensor> inputs) {
  ThreadState& state = State();
  if (state.mode != Mode::kRecord) return function->Run(inputs);

  Tape& tape = *state.tape;
  const RandomPosition random = RandomPosition::Now();
  std::vector<ParamSource*> touched;
  std::vector<Tensor> detached, outputs;
  for (const Tensor& input : inputs) detached.push_back(input.Detach());
  {
    ThreadState first_pass = state;
    first_pass.mode = Mode::kTouch;
    first_pass.touched = &touched;
    const StateGuard guard(first_pass);
    outputs = function->Run(detached);
  }
  std::vector<Input> tape_inputs(inputs.begin(), inputs.end());
  std::vector<const Input*> input_pointers;
  for (const Input& input : tape_inputs) input_pointers.push_back(&input);
  if (RecordingTape(input_pointers) == nullptr && touched.empty()) return outputs;

  auto node = std::make_unique<CheckpointNode>(std::move(function), inputs, random);
  CheckpointNode::CountUses(tape, node, std::move(touched));
  std::vector<Tensor*> output_pointers;
  for (Tensor& output : outputs) output_pointers.push_back(&output);
  tape.Record(std::move(node), input_pointers, output_pointers);
  return outputs;
}

}  // namespace tessera
