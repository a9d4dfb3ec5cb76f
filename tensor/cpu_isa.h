// SPDX-License-Identifier: Apache-2.0
// CPU kernels are compiled once per instruction set, each copy in a namespace of its own, and picked at run time: one
// binary runs everywhere and is fast where the machine is.
//
// A kernel file `x_cpu.cc` puts its entry points in `namespace tessera::ops::cpu::TESSERA_ISA` and everything else in an
// anonymous namespace. Nothing in such a file may be emitted as a shared (weak) symbol, no std container, no std
// algorithm that is not inlined: the linker keeps one copy of a weak symbol, and if that were the AVX-512 one, the
// baseline would crash on an older machine. tests/check_isa_symbols.py holds this.
//
// In `x.h`:   TESSERA_CPU_KERNEL(RmsNormForward, RmsNormForwardArgs)
// In `x.cc`:  cpu::RmsNormForward(args);
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class CpuIsa : uint8_t { kBase, kAvx2, kAvx512 };

std::string_view Name(CpuIsa isa);

// The best one that was built and that this machine has; the environment variable TESSERA_ISA (base, avx2, avx512)
// asks for a lower one.
CpuIsa ActiveIsa();

}  // namespace tessera

#ifdef TESSERA_HAVE_AVX2
#define TESSERA_AVX2_NAMESPACE isa_avx2
#else
#define TESSERA_AVX2_NAMESPACE isa_base
#endif
#ifdef TESSERA_HAVE_AVX512
#define TESSERA_AVX512_NAMESPACE isa_avx512
#else
#define TESSERA_AVX512_NAMESPACE TESSERA_AVX2_NAMESPACE
#endif

// Declares the copies of one kernel and the function that picks. For use inside namespace tessera::ops.
#define TESSERA_CPU_KERNEL(Kernel, Args)                                \
  namespace cpu {                                                       \
  namespace isa_base {                                                  \
  void Kernel(const Args& args);                                        \
  }                                                                     \
  namespace isa_avx2 {                                                  \
  void Kernel(const Args& args);                                        \
  }                                                                     \
  namespace isa_avx512 {                                                \
  void Kernel(const Args& args);                                        \
  }                                                                     \
  __attribute__((always_inline)) inline void Kernel(const Args& args) { \
    switch (ActiveIsa()) {                                              \
      case CpuIsa::kAvx512:                                             \
        return TESSERA_AVX512_NAMESPACE::Kernel(args);                  \
      case CpuIsa::kAvx2:                                               \
        return TESSERA_AVX2_NAMESPACE::Kernel(args);                    \
      case CpuIsa::kBase:                                               \
        return isa_base::Kernel(args);                                  \
    }                                                                   \
  }                                                                     \
  }
