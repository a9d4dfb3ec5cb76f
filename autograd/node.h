// SPDX-License-Identifier: Apache-2.0
// A recorded operation: what it saved, whom its inputs' gradients go to, and its backward.
//
// A differentiable function is always the same four steps: validate; allocate outputs; call the raw op; record if a tape
// is open and an input is tracked. The last step reads:
//
//   if (Tape* tape = RecordingTape({&x, &weight})) {
//     tape->Record(std::make_unique<RmsNormNode>(Saved(x), Saved(weight), Saved(rstd)), {&x, &weight}, {&y});
//   }
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/param.h"

namespace tessera {

class BackwardContext;
class Tape;

// A value kept for backward. A parameter is kept by reference and its data asked for again; a tensor is kept with the
// version of its storage and refused if that has changed; a tensor in parameter storage is refused at once, by path.
class Saved {
 public:
  Saved() = default;
  Saved(const Input& input);    // NOLINT: implicit on purpose
  Saved(const Tensor& tensor);  // NOLINT: implicit on purpose

  bool present() const { return tensor_.defined() || is_param(); }
  bool is_param() const { return param_ != nullptr; }
  const Shape& shape() const { return is_param() ? param_->shape() : tensor_.shape(); }
  DType dtype() const { return is_param() ? param_->source()->dtype() : tensor_.dtype(); }
  // `op` names the node in the error for a changed tensor.
  Tensor Get(const char* op) const;

 private:
  Tensor tensor_;
  std::unique_ptr<ParamRef> param_;
  uint32_t version_ = 0;
};

class Node {
 public:
  virtual ~Node() = default;
  virtual const char* name() const = 0;
  // Reads the outputs' gradients from ctx and gives each input that needs one its gradient. Called at most once.
  virtual void Backward(BackwardContext& ctx) = 0;

 private:
  friend class Tape;
  friend class BackwardContext;
  friend class CheckpointNode;

  // Who gets the gradient of one input: a slot of the tape, a parameter, or nobody.
  struct Edge {
    uint32_t slot = 0;  // 0: none
    bool tracked = false;
    std::unique_ptr<ParamRef> param;  // apart, for a node is small when its inputs are tensors
  };
  static constexpr size_t kInlineEdges = 4;
  const Edge& edge(int input) const {
    const size_t index = static_cast<size_t>(input);
    return index < kInlineEdges ? edges_[index] : more_edges_[index - kInlineEdges];
  }

  std::array<Edge, kInlineEdges> edges_;
  std::vector<Edge> more_edges_;
  uint32_t edge_count_ = 0;
  uint32_t first_output_ = 0;  // outputs have consecutive slots
  uint32_t output_count_ = 0;
  uint32_t scope_ = 0;
  std::vector<ParamSource*> touched_;  // Checkpoint: the uses that its first pass counted
};

// What a node's Backward works with.
class BackwardContext {
 public:
  // The gradient of output `index`; undefined when none reached it (possible only for nodes with several outputs).
  const Tensor& OutputGrad(int index = 0) const { return output_grads_[static_cast<size_t>(index)]; }
  // The same with a dense last dimension, as row kernels want it: one that came through a transposed view is copied.
  const Tensor& DenseOutputGrad(int index = 0);
  bool Needs(int input) const { return node_.edge(input).tracked; }

  // Where to write the gradient of this input, of the given shape and dtype. For parameters the buffer may be of another
  // dtype. The caller writes all of it, or adds to it if `accumulate` is set; and lets go of it before it asks for another,
  // which may be the same (Mul(x, x)).
  GradTarget Target(int input, const Shape& shape, DType dtype);
  // Hands over a finished gradient: kept as it is when it is the first, added otherwise.
  void AddGrad(int input, Tensor grad);

 private:
  friend class Tape;
  friend class CheckpointNode;
  BackwardContext(Tape& tape, Node& node) : tape_(tape), node_(node) {}
  Tape& tape_;
  Node& node_;
  std::vector<Tensor> output_grads_;
};

}  // namespace tessera
