// SPDX-License-Identifier: Apache-2.0
// Rows by index: y[..., c] = weight[ids[...], c]. It serves embedding tables and any other gathering of rows.
//
// weight (V, C), y (ids' shape, C): one dtype of any kind. ids: i32 or i64, rank at most 5. Any layouts (y without overlap).
// Every id must be in [0, V): on the CPU this is checked before anything is written.
//
// Backward: dweight[v] = sum of dy over the positions where ids is v, and zero for a v that is nowhere; added to the buffer
// instead with `accumulate`. dy floating; dweight of any floating dtype. Each row's terms are added in f64 in the order of
// positions and rounded once: the bits do not depend on the number of threads, and there are no atomics. It reads no weight.
// Workspace: EmbeddingWorkspaceNumel() elements of i64.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct EmbeddingForwardArgs {
  ConstView weight, ids;
  View y;
};

struct EmbeddingBackwardArgs {
  ConstView dy, ids;
  View dweight;
  bool accumulate = false;
  View workspace;
};

void EmbeddingForward(const EmbeddingForwardArgs& args);
void EmbeddingBackward(const EmbeddingBackwardArgs& args);
int64_t EmbeddingWorkspaceNumel(int64_t rows, int64_t ids);

TESSERA_CPU_KERNEL(EmbeddingForward, EmbeddingForwardArgs)
TESSERA_CPU_KERNEL(EmbeddingBackward, EmbeddingBackwardArgs)

}  // namespace tessera::ops
