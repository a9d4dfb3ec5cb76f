// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/fill.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

template <class T>
void FillAs(const FillArgs& args) {
  const T value = Store<T>(args.value);
  T* out = static_cast<T*>(args.out.data);
  const Layout* const layouts[] = {&args.out.layout};
  StridedLoop<1>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    T* run = out + offsets[0];
    if (steps[0] == 1) {
      for (int64_t i = 0; i < n; ++i) run[i] = value;
    } else {
      for (int64_t i = 0; i < n; ++i) run[i * steps[0]] = value;
    }
  });
}

}  // namespace

void Fill(const FillArgs& args) {
  switch (args.out.dtype) {
    case DType::kI32:
      return FillAs<int32_t>(args);
    case DType::kI64:
      return FillAs<int64_t>(args);
    case DType::kU8:
      return FillAs<uint8_t>(args);
    default:
      DispatchFloating(args.out.dtype, [&](auto tag) { FillAs<typename decltype(tag)::type>(args); });
  }
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
