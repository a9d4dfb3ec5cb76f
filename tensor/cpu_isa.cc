// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu_isa.h"

#include <cstdlib>

#include "tensor/error.h"

namespace tessera {
namespace {

CpuIsa Best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#ifdef TESSERA_HAVE_AVX512
  if (avx512) return CpuIsa::kAvx512;
#endif
#ifdef TESSERA_HAVE_AVX2
  if (avx2) return CpuIsa::kAvx2;
#endif
  (void)avx512;
#endif
  return CpuIsa::kBase;
}

CpuIsa Choose() {
  const CpuIsa best = Best();
  const char* wanted = std::getenv("TESSERA_ISA");
  if (wanted == nullptr) return best;
  for (CpuIsa isa : {CpuIsa::kBase, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (Name(isa) != wanted) continue;
    if (isa > best) {
      throw Error(
          Str("TESSERA_ISA: ", wanted, " is not to be had here; the best of this build and machine is ", Name(best)));
    }
    return isa;
  }
  throw Error(Str("TESSERA_ISA: '", wanted, "' is not one of base, avx2, avx512"));
}

}  // namespace

std::string_view Name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBase:
      return "base";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
  }
  return "?";
}

CpuIsa ActiveIsa() {
  static const CpuIsa isa = Choose();
  return isa;
}

}  // namespace tessera
