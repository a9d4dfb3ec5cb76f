// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/copy.h"
#include "tensor/ops/cpu_kernel.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

TESSERA_ALWAYS_INLINE int32_t Load(int32_t x) { return x; }
TESSERA_ALWAYS_INLINE int64_t Load(int64_t x) { return x; }
TESSERA_ALWAYS_INLINE uint8_t Load(uint8_t x) { return x; }

template <class From, class To>
void CopyAs(const CopyArgs& args) {
  const From* x = static_cast<const From*>(args.x.data);
  To* out = static_cast<To*>(args.out.data);
  const Layout* const layouts[] = {&args.out.layout, &args.x.layout};
  StridedLoop<2>(layouts).ForEach([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    To* to = out + offsets[0];
    const From* from = x + offsets[1];
    if (args.accumulate) {
      if constexpr (std::is_integral_v<From> || std::is_integral_v<To>) {
        return;  // refused by the checks
      } else if (steps[0] == 1 && steps[1] == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = Store<To>(Load(to[i]) + Load(from[i]));
      } else {
        for (int64_t i = 0; i < n; ++i) {
          to[i * steps[0]] = Store<To>(Load(to[i * steps[0]]) + Load(from[i * steps[1]]));
        }
      }
    } else if (steps[0] == 1 && steps[1] == 1) {
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<From, To>) {
          to[i] = from[i];
        } else {
          to[i] = Store<To>(Load(from[i]));
        }
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<From, To>) {
          to[i * steps[0]] = from[i * steps[1]];
        } else {
          to[i * steps[0]] = Store<To>(Load(from[i * steps[1]]));
        }
      }
    }
  });
}

}  // namespace

void Copy(const CopyArgs& args) {
  DispatchAny(args.x.dtype, [&](auto from) {
    DispatchAny(args.out.dtype,
                [&](auto to) { CopyAs<typename decltype(from)::type, typename decltype(to)::type>(args); });
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
