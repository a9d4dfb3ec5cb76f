// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/fill.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void Fill(const FillArgs& args) {
  CheckNoOverlap("fill", {"out", args.out});
  switch (BackendFor("fill", args.out)) {
    case Backend::kCpu:
      return cpu::Fill(args);
    case Backend::kCuda:
      return cuda::Fill(args);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
