// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/swiglu.h"

#include "tensor/ops/check.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "swiglu";

void CheckLikeGate(const ConstView& gate, const Named& arg) {
  CheckSameShape(kOp, {"gate", gate}, arg);
  CheckSameDType(kOp, {{"gate", gate}, arg});
  CheckSameDevice(kOp, {{"gate", gate}, arg});
}

void CheckOutput(const ConstView& gate, const Named& arg) {
  CheckLikeGate(gate, arg);
  CheckNoOverlap(kOp, arg);
}

}  // namespace

void SwiGluForward(const SwiGluForwardArgs& args) {
  CheckFloating(kOp, {"gate", args.gate});
  CheckLikeGate(args.gate, {"up", args.up});
  CheckOutput(args.gate, {"y", args.y});
  switch (BackendFor(kOp, args.gate)) {
    case Backend::kCpu:
      return cpu::SwiGluForward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

void SwiGluBackward(const SwiGluBackwardArgs& args) {
  CheckFloating(kOp, {"gate", args.gate});
  CheckLikeGate(args.gate, {"up", args.up});
  CheckLikeGate(args.gate, {"dy", args.dy});
  CheckOutput(args.gate, {"dgate", args.dgate});
  CheckOutput(args.gate, {"dup", args.dup});
  switch (BackendFor(kOp, args.gate)) {
    case Backend::kCpu:
      return cpu::SwiGluBackward(args);
    case Backend::kCuda:
      NoCudaKernel(kOp);
    case Backend::kNone:
      return;
  }
}

}  // namespace tessera::ops
