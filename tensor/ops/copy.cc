// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/copy.h"

#include "tensor/ops/check.h"

namespace tessera::ops {

void Copy(const CopyArgs& args) {
  CheckSameShape("copy", {"x", args.x}, {"out", args.out});
  CheckSameDevice("copy", {{"x", args.x}, {"out", args.out}});
  CheckNoOverlap("copy", {"out", args.out});
  if (args.accumulate) {
    CheckFloating("copy", {"x", args.x});
    CheckFloating("copy", {"out", args.out});
  }
  switch (BackendFor("copy", args.out)) {
    case Backend::kCpu:
      return cpu::Copy(args);
    case Backend::kCuda:
      return cuda::Copy(args);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
