// SPDX-License-Identifier: Apache-2.0
// A differentiable function of your own, from two callables.
//
//   Tensor y = CustomFunction("cube", {x},
//       [](SavedValues& save, std::span<const Tensor> in) { save.Keep(0); return ops... in[0]^3; },
//       [](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> { return {3 * saved[0]^2 * dy}; });
//
// The forward callable gets the inputs' data (parameters gathered) and says what backward needs: Keep(i) for an input,
// which for a parameter means by reference, and Add(tensor) for something it computed. The backward callable returns one
// gradient per input; an undefined tensor means none.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace tessera {

class SavedValues {
 public:
  SavedValues(const char* name, std::span<const Input> inputs) : name_(name), inputs_(inputs) {}
  void Keep(int input) { values_.emplace_back(inputs_[static_cast<size_t>(input)]); }
  void Add(const Tensor& tensor) { values_.emplace_back(tensor); }
  // In the order of Keep and Add. A parameter's data is gathered now.
  Tensor operator[](int index) const { return values_[static_cast<size_t>(index)].Get(name_); }

 private:
  template <class Forward, class BackwardFn>
  friend Tensor CustomFunction(const char*, std::initializer_list<Input>, Forward, BackwardFn);
  const char* name_;
  std::span<const Input> inputs_;  // valid during forward only
  std::vector<Saved> values_;
};

namespace internal {

template <class BackwardFn>
class CustomNode final : public Node {
 public:
  CustomNode(const char* name, SavedValues saved, std::vector<Shape> shapes, BackwardFn backward)
      : name_(name), saved_(std::move(saved)), shapes_(std::move(shapes)), backward_(std::move(backward)) {}
  const char* name() const override { return name_; }
  void Backward(BackwardContext& ctx) override {
    const std::vector<Tensor> grads = backward_(saved_, ctx.OutputGrad());
    if (grads.size() != shapes_.size()) {
      throw Error(Str(name_, ": backward returned ", grads.size(), " gradients for ", shapes_.size(), " inputs"));
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      if (grads[i].shape() != shapes_[i]) {
        throw Error(
            Str(name_, ": the gradient of input ", i, " has shape ", grads[i].shape(), ", expected ", shapes_[i]));
      }
      ctx.AddGrad(static_cast<int>(i), grads[i].Detach());
    }
  }

 private:
  const char* name_;
  SavedValues saved_;
  std::vector<Shape> shapes_;
  BackwardFn backward_;
};

}  // namespace internal

// `name` must be a string literal.
template <class Forward, class BackwardFn>
Tensor CustomFunction(const char* name, std::initializer_list<Input> inputs, Forward forward, BackwardFn backward) {
  const std::span<const Input> list(inputs.begin(), inputs.size());
  std::vector<const Input*> pointers;
  std::vector<Tensor> data;
  std::vector<Shape> shapes;
  for (const Input& input : list) {
    pointers.push_back(&input);
    data.push_back(input.Data().Detach());
    shapes.push_back(input.shape());
  }
  Tape* tape = RecordingTape(pointers);
  SavedValues saved(name, list);
  Tensor output;
  {
    const NoGrad pause;  // the two callables define the derivative, not what forward happens to call
    output = forward(saved, std::span<const Tensor>(data)).Detach();
  }
  if (tape != nullptr) {
    saved.inputs_ = {};
    Tensor* outputs[] = {&output};
    tape->Record(std::make_unique<internal::CustomNode<BackwardFn>>(name, std::move(saved), std::move(shapes),
                                                                    std::move(backward)),
                 pointers, outputs);
  }
  return output;
}

}  // namespace tessera
