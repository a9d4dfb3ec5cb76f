// SPDX-License-Identifier: Apache-2.0
// The gated unit of Llama's MLP: silu(gate) * up. The halves of a packed projection may be given as views.
#pragma once

#include "autograd/param.h"

namespace tessera {

// gate, up: one shape, any layouts -> the same shape
Tensor SwiGlu(const Input& gate, const Input& up);

}  // namespace tessera
