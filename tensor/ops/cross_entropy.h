// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of rows of logits: loss[row] = log sum exp(logits[row, :]) - logits[row, target[row]].
//
// logits (..., V): floating, rows dense, other dims with any strides. targets (...): i32 or i64, any strides. A row
// whose target is ignore_index has loss 0 and gradient 0, whatever its logits are. Columns from valid_classes on (-1:
// none) are padding: they influence nothing and get gradient 0. Other targets must be in [0, valid_classes); a CPU run
// throws the first that is not. Everything else is in the accumulation type A, f32 (f64 for f64): loss, log_sum (rows),
// contiguous; sum, weight, dsum, seed: rank 0. Each row is one chain of operations in a fixed order. V = 0 and no rows
// are legal.
//
// Rows        loss, log_sum (optional), and with `gradient` (optional; logits' shape, both of type A) at once
//             softmax(logits) - one_hot(target), for which gradient may be logits: one exponential per element.
// Backward    dlogits = dsum * (exp(logits - log_sum) - one_hot(target)). dlogits may be logits.
// Total       sum = the losses in order, in f64; weight = how many targets are not ignored.
// MeanSeed    seed = scale / weight, or 0 where weight is 0: with it as gradient of the sum, the mean is
// differentiated.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct CrossEntropyRowsArgs {
  ConstView logits, targets;
  View loss;
  View log_sum = {};   // optional
  View gradient = {};  // optional
  int64_t ignore_index = -100;
  int64_t valid_classes = -1;
};

struct CrossEntropyBackwardArgs {
  ConstView logits, targets, log_sum, dsum;
  View dlogits;
  int64_t ignore_index = -100;
  int64_t valid_classes = -1;
};

struct CrossEntropyTotalArgs {
  ConstView loss, targets;
  View sum, weight;
  int64_t ignore_index = -100;
};

struct MeanSeedArgs {
  ConstView weight;
  View seed;
  double scale = 1;
};

// Throws, naming `op`, for the first target that is neither a class nor ignore_index; reads CPU memory only.
void CheckTargets(const char* op, const ConstView& targets, int64_t classes, int64_t ignore_index);

void CrossEntropyRows(const CrossEntropyRowsArgs& args);
void CrossEntropyBackward(const CrossEntropyBackwardArgs& args);
void CrossEntropyTotal(const CrossEntropyTotalArgs& args);
void MeanSeed(const MeanSeedArgs& args);

TESSERA_CPU_KERNEL(CrossEntropyRows, CrossEntropyRowsArgs)
TESSERA_CPU_KERNEL(CrossEntropyBackward, CrossEntropyBackwardArgs)
TESSERA_CPU_KERNEL(CrossEntropyTotal, CrossEntropyTotalArgs)
TESSERA_CPU_KERNEL(MeanSeed, MeanSeedArgs)

}  // namespace tessera::ops
