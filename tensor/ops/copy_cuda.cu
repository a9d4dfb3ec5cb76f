// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "tensor/ops/copy.h"
#include "tensor/ops/cuda_kernel.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;  // elements that a thread of the dense loop converts at once

template <class From, class To, bool kAccumulate>
__device__ __forceinline__ To Copied(From x, To old) {
  if constexpr (kAccumulate) {
    return Store<To>(Load(old) + Load(x));
  } else if constexpr (std::is_same_v<From, To>) {
    return x;
  } else {
    return Store<To>(Load(x));
  }
}

template <class From, class To, bool kAccumulate>
__global__ void CopyKernel(const From* x, To* out, ElementMap<2> map, bool dense) {
  if (dense) {
    const int64_t packs = map.numel / kPack;
    for (int64_t i = GlobalThread(); i < packs; i += GridThreads()) {
      const Pack<From, kPack> from = LoadPack<From, kPack>(x + i * kPack);
      Pack<To, kPack> to;
      if constexpr (kAccumulate) to = LoadPack<To, kPack>(out + i * kPack);
#pragma unroll
      for (int k = 0; k < kPack; ++k) to.v[k] = Copied<From, To, kAccumulate>(from.v[k], to.v[k]);
      StorePack(out + i * kPack, to);
    }
    const int64_t rest = packs * kPack + GlobalThread();
    if (rest < map.numel) out[rest] = Copied<From, To, kAccumulate>(x[rest], out[rest]);
    return;
  }
  for (int64_t i = GlobalThread(); i < map.numel; i += GridThreads()) {
    int64_t offsets[2];
    map.Offsets(i, offsets);
    To& to = out[offsets[0]];
    to = Copied<From, To, kAccumulate>(x[offsets[1]], to);
  }
}

template <class T>
bool IsAligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Pack<T, kPack>) == 0;
}

template <class From, class To, bool kAccumulate>
void Launch(const CopyArgs& args) {
  const internal::LaunchScope scope(args.out.device);
  const Layout* const layouts[] = {&args.out.layout, &args.x.layout};
  const ElementMap<2> map(layouts);
  const From* x = static_cast<const From*>(FirstElement(args.x));
  To* out = static_cast<To*>(FirstElement(args.out));
  const bool dense = map.IsDense() && IsAligned(x) && IsAligned(out);
  const int64_t work = dense ? (map.numel + kPack - 1) / kPack : map.numel;
  CopyKernel<From, To, kAccumulate><<<GridFor(work, kThreads), kThreads, 0, scope.stream()>>>(x, out, map, dense);
  scope.CheckLaunch("copy");
}

// Equal dtypes are moved as bits: one kernel per width.
void MoveBits(const CopyArgs& args) {
  switch (ItemSize(args.out.dtype)) {
    case 8:
      return Launch<uint64_t, uint64_t, false>(args);
    case 4:
      return Launch<uint32_t, uint32_t, false>(args);
    case 2:
      return Launch<uint16_t, uint16_t, false>(args);
    default:
      return Launch<uint8_t, uint8_t, false>(args);
  }
}

template <class F>
void DispatchAny(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kI32:
      return f(TypeTag<int32_t>{});
    case DType::kI64:
      return f(TypeTag<int64_t>{});
    case DType::kU8:
      return f(TypeTag<uint8_t>{});
    default:
      return DispatchFloating(dtype, f);
  }
}

}  // namespace

void Copy(const CopyArgs& args) {
  if (args.out.numel() == 0) return;
  if (args.accumulate) {
    return DispatchFloating(args.x.dtype, [&](auto from) {
      DispatchFloating(args.out.dtype, [&](auto to) {
        Launch<typename decltype(from)::type, typename decltype(to)::type, true>(args);
      });
    });
  }
  if (args.x.dtype == args.out.dtype) return MoveBits(args);
  DispatchAny(args.x.dtype, [&](auto from) {
    DispatchAny(args.out.dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!std::is_same_v<From, To>) Launch<From, To, false>(args);
    });
  });
}

}  // namespace tessera::ops::cuda
