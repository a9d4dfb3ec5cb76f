// SPDX-License-Identifier: Apache-2.0
// Which GPUs this program can use. Free of CUDA's headers, and there in every build.
//
//   if (CudaDeviceCount() == 0) std::puts(CudaAbsence().c_str());
#pragma once

#include <string>

#include "tensor/device.h"

namespace tessera {

#ifdef TESSERA_CUDA
int CudaDeviceCount();                // 0 where there is no GPU or no driver
std::string CudaAbsence();            // why the count is 0: "no CUDA device: ..."
std::string CudaVersions();           // of the driver, the run time and cuBLASLt, and the GPU's name
void CudaSynchronize(Device device);  // the host waits for all work of the GPU
#else
inline int CudaDeviceCount() { return 0; }
inline std::string CudaAbsence() { return "no CUDA device: this build has no CUDA"; }
inline std::string CudaVersions() { return "built without CUDA"; }
inline void CudaSynchronize(Device) {}
#endif

}  // namespace tessera
