// SPDX-License-Identifier: Apache-2.0
// Rows of a table by id. Dtypes, layouts and the check of ids are those of tensor/ops/embedding.h.
#pragma once

#include "autograd/param.h"

namespace tessera {

// weight (V, C), ids (...) of i32 or i64 -> (..., C). Backward reads no data of the weight, so nothing is gathered for it.
Tensor Embedding(const Input& weight, const Tensor& ids);

}  // namespace tessera
