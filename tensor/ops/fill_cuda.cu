// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "tensor/ops/cuda_kernel.cuh"
#include "tensor/ops/fill.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Bits: the unsigned integer as wide as the element.
template <class Bits>
__global__ void FillStrided(Bits* out, ElementMap<1> map, Bits value) {
  for (int64_t i = GlobalThread(); i < map.numel; i += GridThreads()) {
    int64_t offset[1];
    map.Offsets(i, offset);
    out[offset[0]] = value;
  }
}

template <class Bits>
__global__ void FillDense(Bits* out, int64_t numel, Bits value) {
  constexpr int kPack = kPackSize<Bits>;
  Pack<Bits, kPack> pack;
#pragma unroll
  for (int k = 0; k < kPack; ++k) pack.v[k] = value;
  const int64_t packs = numel / kPack;
  for (int64_t i = GlobalThread(); i < packs; i += GridThreads()) StorePack(out + i * kPack, pack);
  if (GlobalThread() < numel - packs * kPack) out[packs * kPack + GlobalThread()] = value;
}

template <class Bits>
void Launch(const FillArgs& args, Bits value) {
  const internal::LaunchScope scope(args.out.device);
  const Layout* const layouts[] = {&args.out.layout};
  const ElementMap<1> map(layouts);
  Bits* out = static_cast<Bits*>(FirstElement(args.out));
  if (map.IsDense() && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
    FillDense<<<GridFor((map.numel + kPackSize<Bits> - 1) / kPackSize<Bits>, kThreads), kThreads, 0, scope.stream()>>>(
        out, map.numel, value);
  } else {
    FillStrided<<<GridFor(map.numel, kThreads), kThreads, 0, scope.stream()>>>(out, map, value);
  }
  scope.CheckLaunch("fill");
}

}  // namespace

// The value is rounded on the host, by the CPU kernel's own functions.
void Fill(const FillArgs& args) {
  if (args.out.numel() == 0) return;
  const float single = static_cast<float>(args.value);
  switch (args.out.dtype) {
    case DType::kF32:
      return Launch<uint32_t>(args, std::bit_cast<uint32_t>(single));
    case DType::kBF16:
      return Launch<uint16_t>(args, ToBFloat16(single).bits);
    case DType::kF16:
      return Launch<uint16_t>(args, ToFloat16(single).bits);
    case DType::kF64:
      return Launch<uint64_t>(args, std::bit_cast<uint64_t>(args.value));
    case DType::kI32:
      return Launch<uint32_t>(args, static_cast<uint32_t>(static_cast<int32_t>(args.value)));
    case DType::kI64:
      return Launch<uint64_t>(args, static_cast<uint64_t>(static_cast<int64_t>(args.value)));
    case DType::kU8:
      return Launch<uint8_t>(args, static_cast<uint8_t>(args.value));
  }
}

}  // namespace tessera::ops::cuda
