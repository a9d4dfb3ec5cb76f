// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/device.h"

#include <cublasLt.h>

#include "tensor/cuda/runtime.cuh"

namespace tessera {
namespace {

struct Found {
  int count = 0;
  cudaError_t status;
};

const Found& Devices() {
  static const Found found = [] {
    Found result;
    result.status = cudaGetDeviceCount(&result.count);
    if (result.status != cudaSuccess) {
      result.count = 0;
      cudaGetLastError();  // or the next launch would be blamed
    }
    return result;
  }();
  return found;
}

std::string Dotted(int version) { return Str(version / 1000, ".", version % 1000 / 10); }

}  // namespace

int CudaDeviceCount() { return Devices().count; }

std::string CudaAbsence() {
  if (Devices().count > 0) return "";
  if (Devices().status == cudaSuccess) return "no CUDA device: the driver lists none";
  return Str("no CUDA device: ", cudaGetErrorString(Devices().status));
}

std::string CudaVersions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const size_t lt = cublasLtGetVersion();
  std::string versions = Str("driver for CUDA ", driver == 0 ? std::string("none") : Dotted(driver), ", run time ",
                             Dotted(runtime), ", cuBLASLt ", lt / 10000, ".", lt / 100 % 100, ".", lt % 100);
  for (int index = 0; index < CudaDeviceCount(); ++index) {
    cudaDeviceProp properties;
    TESSERA_CUDA_CALL(cudaGetDeviceProperties(&properties, index));
    versions += Str("\ncuda:", index, " ", properties.name, ", sm_", properties.major, properties.minor, ", ",
                    properties.multiProcessorCount, " multiprocessors, ", properties.totalGlobalMem >> 20, " MiB");
  }
  return versions;
}

void CudaSynchronize(Device device) {
  const internal::DeviceScope scope(device);
  TESSERA_CUDA_CALL(cudaDeviceSynchronize());
}

namespace internal {

void ThrowCudaError(cudaError_t status, const char* call) {
  cudaGetLastError();  // what can be forgotten is: the error has its place here
  throw Error(Str("cuda: ", call, " failed with ", static_cast<int>(status), ", ", cudaGetErrorName(status), ": ",
                  cudaGetErrorString(status)));
}

DeviceScope::DeviceScope(Device device) {
  if (device.index < 0 || device.index >= CudaDeviceCount()) {
    throw Error(Str("cuda: there is no ", device, "; ",
                    CudaDeviceCount() == 0 ? CudaAbsence() : Str("this machine has ", CudaDeviceCount(), " GPUs")));
  }
  TESSERA_CUDA_CALL(cudaGetDevice(&previous_));
  changed_ = previous_ != device.index;
  if (changed_) TESSERA_CUDA_CALL(cudaSetDevice(device.index));
}

DeviceScope::~DeviceScope() {
  if (changed_) cudaSetDevice(previous_);
}

}  // namespace internal
}  // namespace tessera
