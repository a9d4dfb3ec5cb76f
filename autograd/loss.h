// SPDX-License-Identifier: Apache-2.0
// Cross-entropy losses. A loss is a sum and the number of targets it is over, so that micro-batches and ranks of any
// size add up to the mean over all tokens: add the sums, add the weights, divide once.
//
//   Tape tape;
//   Loss loss = CrossEntropy(model(ids), targets);
//   Backward(loss);                       // differentiates the mean; with no targets at all every gradient is 0
//   printf("%f\n", loss.Mean());
#pragma once

#include "autograd/tape.h"

namespace tessera {

struct Loss {
  Tensor sum;     // rank 0, f32 (f64 for f64): differentiable
  Tensor weight;  // rank 0, the same type: how many targets were counted

  double Mean() const;  // 0 without targets
  double Item() const { return Mean(); }
};

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // targets of this value count for nothing
  int64_t valid_classes = -1;   // columns from here on are padding of the vocabulary; -1: none
};

// logits (..., V), rows dense; targets (...), i32 or i64.
Loss CrossEntropy(const Input& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;
  int64_t valid_classes = -1;
  int64_t chunk_bytes = int64_t{64} << 20;  // of logits that exist at a time
};

// CrossEntropy(Linear(x, weight), targets) without ever holding all logits: rows go in chunks, and while a chunk's
// logits are there, its gradients are made from them, for a gradient of 1 at the sum; backward scales. x (..., C), one
// matrix of rows; weight (V, C); targets (...). Where nothing records, and in the first pass of a Checkpoint, no
// gradients are made. Backward does not ask for the weight's data.
Loss LinearCrossEntropy(const Input& x, const Input& weight, const Tensor& targets,
                        const LinearCrossEntropyOptions& options = {});

// The gradient to feed at loss.sum: scale / weight, or 0 without targets. Stays on the device.
Tensor MeanSeed(const Loss& loss, double scale = 1);

// Backward of the mean, on this thread's tape or a given one.
void Backward(const Loss& loss);
void Backward(Tape& tape, const Loss& loss);

}  // namespace tessera
