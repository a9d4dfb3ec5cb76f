// SPDX-License-Identifier: Apache-2.0
// Memory, streams, events and copies of a GPU. The kernels are in cuda_ops_test.cc and in the op cases of autograd.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "tensor/ops/fill.h"
#include "tensor/ops/swiglu.h"
#include "tensor/ops/transfer.h"
#include "tensor/ops/unary.h"
#include "tensor/stream.h"
#include "tests/support/cuda_mirror.h"

namespace tessera::testing {
namespace {

constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                                DType::kI32, DType::kI64,  DType::kU8};
constexpr int64_t kLarge = int64_t{1} << 24;  // elements: an op on as many takes the GPU long enough to be overtaken

bool KeepsBlocks() {
  const char* check = std::getenv("TESSERA_CUDA_CHECK");
  return check == nullptr || std::string(check) != "1";
}

Context On(Stream& stream) {
  Context context = CurrentContext();
  context.device = stream.device();
  context.stream = &stream;
  return context;
}

void ExpectAll(const Tensor& x, double value) {
  const Tensor on_cpu = CopyTo(x, kCpu);
  for (int64_t i = 0; i < x.numel(); i += std::max<int64_t>(1, x.numel() / 1000)) ASSERT_EQ(on_cpu.At(i), value) << i;
  ASSERT_EQ(on_cpu.At(x.numel() - 1), value);
}

// Needs no GPU: an op looks at the device before it looks at the data.
TEST(CudaBuild, OpsWithoutAKernelSaySo) {
  const auto view = [](const Shape& shape) { return View{nullptr, Layout::Contiguous(shape), DType::kF32, Cuda()}; };
  const View x = view({2, 4});
  EXPECT_EQ(ErrorOf([&] { ops::SwiGluForward({.gate = x, .up = x, .y = x}); }),
            "swiglu: has no CUDA kernel yet; run it on the CPU");
  EXPECT_EQ(ErrorOf([&] { ops::UnaryForward({.op = ops::UnaryOp::kGeluTanh, .x = x, .y = x}); }),
            "gelu_tanh: has no CUDA kernel yet; run it on the CPU");
}

TEST(CudaBuild, WithoutAGpuEveryWayInSaysThatThereIsNone) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(CudaAbsence().rfind("no CUDA device: ", 0), 0u) << CudaAbsence();
  const std::string expected = "cuda: there is no cuda:0; " + CudaAbsence();
  EXPECT_EQ(ErrorOf([] { EmptyOn(Cuda(), {2}, DType::kF32); }), expected);
  EXPECT_EQ(ErrorOf([] { Stream stream(Cuda()); }), expected);
  EXPECT_EQ(ErrorOf([] { CopyTo(Tensor::From<float>({1, 2}, {2}), Cuda()); }), expected);
}

TEST_F(CudaTest, AnUnknownGpuIsNamed) {
  const std::string error = ErrorOf([] { EmptyOn(Cuda(CudaDeviceCount()), {2}, DType::kF32); });
  EXPECT_EQ(error.rfind(Str("cuda: there is no cuda:", CudaDeviceCount(), "; this machine has "), 0), 0u) << error;
}

TEST_F(CudaTest, AllocatorCountsByTag) {
  DeviceAllocator allocator(0);
  void* params = allocator.Allocate(1000, MemoryTag::kParams);
  void* grads = allocator.Allocate(100'000'001, MemoryTag::kGrads);
  AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats[MemoryTag::kParams], 1000);
  EXPECT_EQ(stats[MemoryTag::kGrads], 100'000'001);
  EXPECT_GE(stats.reserved_bytes, stats.bytes);
  EXPECT_LE(stats.reserved_bytes, stats.bytes + stats.bytes / 8 + 1024);
  allocator.Free(grads, 100'000'001, MemoryTag::kGrads);
  EXPECT_EQ(allocator.stats().bytes, 1000);
  EXPECT_EQ(allocator.stats().peak_bytes, 100'001'001);
  allocator.Free(params, 1000, MemoryTag::kParams);
  allocator.ReleaseCached();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
  EXPECT_EQ(allocator.Allocate(0, MemoryTag::kParams), nullptr);
}

TEST_F(CudaTest, AllocatorAsksTheDriverForNothingInASteadyStep) {
  if (!KeepsBlocks()) GTEST_SKIP() << "TESSERA_CUDA_CHECK keeps no free blocks";
  DeviceAllocator allocator(0);
  int64_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<std::pair<void*, int64_t>> blocks;
    for (int64_t bytes = 100; bytes < 40'000'000; bytes = bytes * 5 / 4) {
      blocks.emplace_back(allocator.Allocate(bytes, MemoryTag::kActivations), bytes);
    }
    for (const auto& [data, bytes] : blocks) allocator.Free(data, bytes, MemoryTag::kActivations);
    if (step == 0) after_first = allocator.stats().system_allocation_count;
  }
  EXPECT_GT(after_first, 0);
  EXPECT_EQ(allocator.stats().system_allocation_count, after_first);
  allocator.ReleaseCached();
}

TEST_F(CudaTest, AllocatorGivesFreeBlocksBackBeforeItGivesUp) {
  DeviceAllocator allocator(0);
  allocator.SetLimit(100 << 20);
  void* first = allocator.Allocate(60 << 20, MemoryTag::kStates);
  allocator.Free(first, 60 << 20, MemoryTag::kStates);
  void* second = allocator.Allocate(80 << 20, MemoryTag::kStates);
  const std::string error = ErrorOf([&] { allocator.Allocate(40 << 20, MemoryTag::kGrads); });
  EXPECT_EQ(error.rfind("out of memory: 41943040 bytes for gradients", 0), 0u) << error;
  allocator.Free(second, 80 << 20, MemoryTag::kStates);
  allocator.ReleaseCached();
}

TEST_F(CudaTest, ABlockOfAnotherStreamIsTakenAfterThatStreamsWork) {
  Stream a(Cuda()), b(Cuda());
  Tensor kept, taken;
  const void* first;
  {
    const ContextGuard guard(On(a));
    kept = Empty({kLarge}, DType::kF32);
    const Tensor x = Empty({kLarge}, DType::kF32);
    first = x.Read().data;
    for (int i = 0; i < 50; ++i) ops::Fill({.out = x.Write(), .value = 1});
    ops::Copy({.x = x.Read(), .out = kept.Write()});
  }
  {
    const ContextGuard guard(On(b));
    taken = Empty({kLarge}, DType::kF32);
    ops::Fill({.out = taken.Write(), .value = 2});
    b.Synchronize();
  }
  a.Synchronize();
  if (KeepsBlocks()) {
    EXPECT_EQ(taken.Read().data, first) << "the block was not taken again";
  }
  ExpectAll(kept, 1);
  ExpectAll(taken, 2);
}

TEST_F(CudaTest, AStreamWaitsForAnEventOfAnother) {
  Stream a(Cuda()), b(Cuda());
  const Tensor x = EmptyOn(Cuda(), {kLarge}, DType::kF32), y = EmptyOn(Cuda(), {kLarge}, DType::kF32);
  CudaSynchronize(Cuda());
  Event filled;
  {
    const ContextGuard guard(On(a));
    for (int i = 0; i < 50; ++i) ops::Fill({.out = x.Write(), .value = double(i)});
    filled.Record(a);
    EXPECT_EQ(CurrentStream(Cuda()).native(), a.native());
  }
  b.Wait(filled);
  b.Run([&] { ops::Copy({.x = x.Read(), .out = y.Write()}); });
  b.Synchronize();
  EXPECT_TRUE(filled.done());
  ExpectAll(y, 49);
}

TEST_F(CudaTest, CpuStreamsWaitForAnEventOfAGpu) {
  Stream gpu(Cuda()), worker(StreamKind::kWorker), inlined(StreamKind::kInline);
  const Tensor x = EmptyOn(Cuda(), {kLarge}, DType::kF32);
  CudaSynchronize(Cuda());
  for (int round = 1; round <= 2; ++round) {
    Event filled;
    gpu.Run([&] {
      for (int i = 0; i < 50; ++i) ops::Fill({.out = x.Write(), .value = double(i * round)});
    });
    filled.Record(gpu);
    bool done = false;
    if (round == 1) {
      worker.Wait(filled);
      worker.Run([&] { done = filled.done(); });
      worker.Synchronize();
    } else {
      inlined.Wait(filled);
      done = filled.done();
    }
    EXPECT_TRUE(done);
  }
  ExpectAll(x, 98);
}

TEST_F(CudaTest, AGpuStreamWaitsForAnEventOfAWorker) {
  Stream gpu(Cuda()), worker(StreamKind::kWorker);
  const Tensor host = Tensor::From<float>({0, 0}, {2}), x = EmptyOn(Cuda(), {2}, DType::kF32);
  CudaSynchronize(Cuda());
  worker.Run([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ops::Fill({.out = host.Write(), .value = 7});
  });
  Event written;
  written.Record(worker);
  gpu.Wait(written);
  gpu.Run([&] { ops::Transfer({.x = host.Read(), .out = x.Write()}); });
  gpu.Synchronize();
  ExpectAll(x, 7);
  worker.Run([] { throw Error("the worker failed"); });
  written.Record(worker);
  EXPECT_EQ(ErrorOf([&] { gpu.Wait(written); }), "the worker failed");
}

TEST_F(CudaTest, WhatRunCapturesLivesUntilTheGpuIsDone) {
  Stream gpu(Cuda());
  auto captured = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = captured;
  const Tensor x = EmptyOn(Cuda(), {kLarge}, DType::kF32);
  gpu.Run([captured = std::move(captured), x] { ops::Fill({.out = x.Write(), .value = 1}); });
  EXPECT_FALSE(watched.expired());
  gpu.Synchronize();
  EXPECT_TRUE(watched.expired());
}

TEST_F(CudaTest, EveryDTypeComesBackBitEqual) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{0, 3}, Shape{1, 1}, Shape{5, 7}, Shape{300, 1000}}) {
      const Tensor x = CopyTo(RandomTensor("x", shape, 0, 100), dtype);
      EXPECT_TRUE(BitEqual(CopyTo(CopyTo(x, Cuda()), kCpu), x)) << Name(dtype) << " " << shape.ToString();
      EXPECT_EQ(CopyTo(x, Cuda()).device(), Cuda());
    }
  }
  const Tensor strided = Strided("x", {4, 5}, DType::kF32);
  EXPECT_TRUE(BitEqual(CopyTo(CopyTo(strided, Cuda()), kCpu), strided));
  EXPECT_TRUE(BitEqual(CopyTo(CopyBlock(strided, Cuda()), kCpu), strided));
}

TEST_F(CudaTest, ReadingAGpuTensorOnTheCpuIsAnError) {
  const Tensor x = CopyTo(Tensor::From<float>({1}, {1}), Cuda());
  EXPECT_EQ(ErrorOf([&] { x.Item(); }), "Item: the tensor is on cuda:0, this reads CPU memory; use CopyTo(x, kCpu)");
}

std::vector<Tensor> Layouts(DType dtype, double low = -1) {
  return {CopyTo(RandomTensor("a", {1}, 0, 100), dtype),      CopyTo(RandomTensor("b", {3, 1}, 0, 100), dtype),
          CopyTo(RandomTensor("c", {1031}, 0, 100), dtype),   CopyTo(RandomTensor("d", {64, 65}, 0, 100), dtype),
          StridedFrom(low, "e", {2, 3, 37}, dtype),           SwappedFrom(low, "f", {2, 33, 37}, dtype),
          CopyTo(RandomTensor("g", {2, 0, 3}, 0, 100), dtype)};
}

TEST_F(CudaTest, FillGivesTheCpusBits) {
  for (const DType dtype : kAllDTypes) {
    for (const double value : {0.0, 2.71828, 1e6, std::nan("")}) {
      if (!IsFloating(dtype) && !(value < 100)) continue;
      for (const Tensor& x : Layouts(dtype)) {
        const Pair pair(x);
        ops::Fill({.out = pair.cpu.Write(), .value = value});
        ops::Fill({.out = pair.gpu.Write(), .value = value});
        EXPECT_EQ(pair.Difference(), 0) << Name(dtype) << " " << value << " " << x.layout().ToString();
      }
    }
  }
}

TEST_F(CudaTest, CopyGivesTheCpusBits) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      // What an unsigned integer cannot hold has no one value.
      const std::vector<Tensor> sources = Layouts(from, to == DType::kU8 ? 0 : -1), targets = Layouts(to);
      for (size_t i = 0; i < sources.size(); ++i) {
        for (const bool accumulate : {false, true}) {
          if (accumulate && !(IsFloating(from) && IsFloating(to))) continue;
          // The source dense and the target strided, and the other way round.
          const Tensor dense = CopyTo(targets[i], to);
          for (const Tensor& target : {dense, targets[i]}) {
            const Pair x(target.layout().IsContiguous() ? sources[i] : CopyTo(sources[i], from));
            const Pair out(CopyBlock(target, kCpu));
            ops::Copy({.x = x.cpu.Read(), .out = out.cpu.Write(), .accumulate = accumulate});
            ops::Copy({.x = x.gpu.Read(), .out = out.gpu.Write(), .accumulate = accumulate});
            EXPECT_EQ(out.Difference(), 0) << Name(from) << " to " << Name(to) << " " << target.layout().ToString();
          }
        }
      }
    }
  }
}

TEST_F(CudaTest, CopyRoundsTheEdgesAsTheCpuDoes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Tensor edges = Tensor::From<double>(
      {0.0,  -0.0, 1.00390625, 1.01171875, 1.00048828125, 65504,  65519.9,   65520,  3.4e38, 3.39e38, 1e39,
       1e-8, 6e-8, 5.9e-8,     2e-45,      1e-45,         1e-310, 1.0000001, -1e-40, kInf,   -kInf,   std::nan("")},
      {22});
  for (const DType from : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      const Pair x(CopyTo(edges, from)), out(CopyTo(edges, to));
      ops::Copy({.x = x.cpu.Read(), .out = out.cpu.Write()});
      ops::Copy({.x = x.gpu.Read(), .out = out.gpu.Write()});
      EXPECT_EQ(out.Difference(), 0) << Name(from) << " to " << Name(to);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
