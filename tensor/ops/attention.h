// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention: y = softmax(scale * q k^T) v for each head, without ever forming the scores as a whole.
// T. Dao et al., "FlashAttention", 2022: blocks of scores, a running maximum and sum; backward makes the blocks again
// from the saved log-sum-exp.
//
// q, y (B, T, Hq, D); k, v (B, S, Hkv, D): one floating dtype, the last dimension dense, other dims with any strides,
// so that the parts of a packed projection go in as views. Hq is a multiple of Hkv: query head h reads key head h / (Hq
// / Hkv). With `causal` query i sees the keys up to i + S - T, so that the last query sees all. log_sum (B, Hq, T):
// contiguous, the accumulation type A, in which all sums run (f32; f64 for f64). Sizes of 0 are legal. A query that
// sees no key (no keys at all, or causal with T > S) has output 0, log_sum -infinity and no influence on any gradient.
//
// Backward, with P = exp(scale q k^T - log_sum) and delta = sum over D of dy * y:
//   dv = P^T dy,  dS = P * (dy v^T - delta),  dq = scale dS k,  dk = scale dS^T q,
// where dk and dv are summed over the query heads that share a key head. dq, dk and dv may be parts of one buffer, and
// share no memory with the inputs. Workspace: delta, (B, Hq, T) of A, contiguous.
//
// Determinism: every sum runs over blocks in a fixed order that depends on shapes alone. Scratch (tensor/scratch.h):
// two blocks of scores and two of outputs per thread, (2 * 64 * 64 + 2 * 64 * D) elements of A at most.
#pragma once

#include "tensor/cpu_isa.h"
#include "tensor/tensor.h"

namespace tessera::ops {

struct AttentionForwardArgs {
  ConstView q, k, v;
  View y;
  View log_sum = {};  // optional
  bool causal = false;
  double scale = 1;
};

struct AttentionBackwardArgs {
  ConstView dy, q, k, v, y, log_sum;
  View dq, dk, dv;
  View workspace;
  bool causal = false;
  double scale = 1;
};

void AttentionForward(const AttentionForwardArgs& args);
void AttentionBackward(const AttentionBackwardArgs& args);

TESSERA_CPU_KERNEL(AttentionForward, AttentionForwardArgs)
TESSERA_CPU_KERNEL(AttentionBackward, AttentionBackwardArgs)

}  // namespace tessera::ops
