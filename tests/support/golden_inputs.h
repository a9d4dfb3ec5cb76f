// SPDX-License-Identifier: Apache-2.0
// The weights and batches of the golden traces, from the integer formulas in tests/golden/README.md.
#pragma once

#include <cstdint>

#include "nn/module.h"
#include "tensor/tensor.h"

namespace tessera::testing {

inline constexpr int64_t kGoldenVocab = 67;
inline constexpr int64_t kGoldenTokens = 16;
inline constexpr int64_t kGoldenBatchSize = 36;

void FillGoldenWeights(nn::Module& module);

struct GoldenBatch {
  Tensor ids, targets;  // i64 (rows, 16); ignored targets are -100
};
// Rows [first, first + rows) of the global batch of 36.
GoldenBatch MakeGoldenBatch(int64_t step, int64_t first = 0, int64_t rows = kGoldenBatchSize);

}  // namespace tessera::testing
