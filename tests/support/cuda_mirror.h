// SPDX-License-Identifier: Apache-2.0
// Tests of raw CUDA ops: the same tensors on the CPU and on the first GPU, block by block, so that what lies between the
// rows of a view is compared too. Only CUDA builds have this.
//
//   Pair y(Strided({3, 5}, DType::kF32));
//   ops::Fill({.out = y.cpu.Write(), .value = 1});
//   ops::Fill({.out = y.gpu.Write(), .value = 1});
//   EXPECT_EQ(y.Difference(), 0);
#pragma once

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tensor/context.h"
#include "tensor/cuda/allocator.h"
#include "tensor/cuda/device.h"
#include "tensor/ops/copy.h"
#include "tests/support/op_case.h"

namespace tessera::testing {

// Skips where there is no GPU; fresh GPU memory is NaN.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << CudaAbsence();
    CudaAllocator(0).SetPoison(true);
  }
  void TearDown() override {
    if (CudaDeviceCount() > 0) CudaAllocator(0).SetPoison(false);
  }
};

// The whole block that x is a view of.
inline Tensor WholeBlock(const Tensor& x) {
  return Tensor(x.storage(), Layout::Contiguous({x.storage()->bytes() / ItemSize(x.dtype())}), x.dtype());
}

inline Tensor CopyBlock(const Tensor& x, Device device) {
  const Tensor block = CopyTo(WholeBlock(x), device);
  return Tensor(block.storage(), x.layout(), x.dtype());
}

struct Pair {
  Pair() = default;
  explicit Pair(const Tensor& x) : cpu(x), gpu(CopyBlock(x, Cuda())) {}

  // The largest difference, as a share of the largest value (of 1, if all are smaller).
  double Difference() const {
    return MaxDifference(WholeBlock(cpu), WholeBlock(CopyBlock(gpu, kCpu))) / std::max(1.0, MaxMagnitude(cpu));
  }
  Tensor cpu, gpu;
};

// Random values. A view into a larger block: a gap after each row, and an offset.
inline Tensor StridedFrom(double low, const std::string& key, const Shape& shape, DType dtype) {
  Shape padded = shape;
  padded[shape.rank() - 1] += 3;
  const Tensor block = RandomTensor(key, padded, low, 1, dtype);
  return block.WithLayout(block.layout().Narrow(-1, 2, shape.back()));
}
// Random values; the last two dims are swapped in memory.
inline Tensor SwappedFrom(double low, const std::string& key, const Shape& shape, DType dtype) {
  Shape swapped = shape;
  std::swap(swapped[shape.rank() - 2], swapped[shape.rank() - 1]);
  const Tensor block = RandomTensor(key, swapped, low, 1, dtype);
  return block.WithLayout(block.layout().Transpose(-2, -1));
}
inline Tensor Strided(const std::string& key, const Shape& shape, DType dtype) {
  return StridedFrom(-1, key, shape, dtype);
}
inline Tensor Swapped(const std::string& key, const Shape& shape, DType dtype) {
  return SwappedFrom(-1, key, shape, dtype);
}

}  // namespace tessera::testing
