// SPDX-License-Identifier: Apache-2.0
// Where a tensor's bytes are. `meta` tensors have shapes and no bytes: the same program runs on them for planning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class DeviceKind : uint8_t { kCpu, kCuda, kMeta };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int8_t index = 0;

  bool is_cpu() const { return kind == DeviceKind::kCpu; }
  bool is_cuda() const { return kind == DeviceKind::kCuda; }
  bool is_meta() const { return kind == DeviceKind::kMeta; }
  bool operator==(const Device&) const = default;
  std::string ToString() const {
    if (is_cuda()) return "cuda:" + std::to_string(index);
    return is_cpu() ? "cpu" : "meta";
  }
};

inline constexpr Device kCpu{DeviceKind::kCpu, 0};
inline constexpr Device kMeta{DeviceKind::kMeta, 0};
constexpr Device Cuda(int index = 0) { return {DeviceKind::kCuda, static_cast<int8_t>(index)}; }

// True when the library was built with the CUDA kernels (see the `cuda` build option).
#ifdef TESSERA_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

}  // namespace tessera

// Declares the CUDA kernel of an op, for use inside namespace tessera::ops: in `x.h` beside TESSERA_CPU_KERNEL, defined in
// `x_cuda.cu`. A CUDA build that lacks the definition fails to link; in a CPU build nothing can call it. The files of CPU
// kernels see none: they are the same in both builds.
#if defined(TESSERA_ISA)
#define TESSERA_CUDA_KERNEL(Kernel, Args)
#elif defined(TESSERA_CUDA)
#define TESSERA_CUDA_KERNEL(Kernel, Args) \
  namespace cuda {                        \
  void Kernel(const Args& args);          \
  }
#else
#define TESSERA_CUDA_KERNEL(Kernel, Args) \
  namespace cuda {                        \
  inline void Kernel(const Args&) {}      \
  }
#endif
