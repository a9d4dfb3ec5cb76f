// SPDX-License-Identifier: Apache-2.0
// CUDA kernels against the CPU's at the level of raw ops: what the op cases of autograd do not reach, that is mixed dtypes,
// accumulation, odd layouts, aliases and large rows.
#include <cstdlib>
#include <string>
#include <vector>

#include "tensor/ops/gemm.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/rms_norm.h"
#include "tests/support/cuda_mirror.h"

namespace tessera::testing {
namespace {

// Sums in another order, and for 16-bit results a rounding that may fall to the other side.
double ToleranceFor(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kBF16:
      return 2 * 0x1p-8;
    case DType::kF16:
      return 2 * 0x1p-11;
    default:
      return 5e-6;
  }
}

using Make = Tensor (*)(const std::string&, const Shape&, DType);
Tensor Dense(const std::string& key, const Shape& shape, DType dtype) { return RandomTensor(key, shape, -1, 1, dtype); }
Tensor Repeated(const std::string& key, const Shape& shape, DType dtype) {  // one row, seen again and again
  Shape row = shape;
  row[shape.rank() - 2] = 1;
  const Tensor x = RandomTensor(key, row, -1, 1, dtype);
  return x.WithLayout(x.layout().Expand(shape));
}

struct GemmTypes {
  DType a, b, c;
};
constexpr GemmTypes kGemmTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},    {DType::kF64, DType::kF64, DType::kF64},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kF32},
    {DType::kF16, DType::kF16, DType::kF16},    {DType::kF16, DType::kF16, DType::kF32},
    {DType::kF32, DType::kF32, DType::kBF16},   {DType::kBF16, DType::kF32, DType::kF32},
    {DType::kF32, DType::kF32, DType::kF64}};

void ExpectGemmAgrees(const Pair& a, const Pair& b, const Pair& c, ops::GemmArgs args, const Pair& bias = {},
                      const Pair& pre = {}) {
  ops::GemmArgs on_gpu = args;
  args.a = a.cpu.Read(), args.b = b.cpu.Read(), args.c = c.cpu.Write();
  on_gpu.a = a.gpu.Read(), on_gpu.b = b.gpu.Read(), on_gpu.c = c.gpu.Write();
  if (bias.cpu.defined()) args.bias = bias.cpu.Read(), on_gpu.bias = bias.gpu.Read();
  if (pre.cpu.defined()) args.pre_activation = pre.cpu.Write(), on_gpu.pre_activation = pre.gpu.Write();
  ops::Gemm(args);
  ops::Gemm(on_gpu);
  const std::string what = Str(a.cpu.ToString(), " ", a.cpu.layout(), " x ", b.cpu.ToString(), " ", b.cpu.layout(),
                               " -> ", c.cpu.ToString(), " ", c.cpu.layout(), args.accumulate ? ", accumulates" : "",
                               args.gelu ? ", gelu" : "", bias.cpu.defined() ? ", bias" : "");
  EXPECT_LE(c.Difference(), ToleranceFor(c.cpu.dtype())) << what;
  if (!pre.cpu.defined()) return;
  EXPECT_LE(pre.Difference(), ToleranceFor(pre.cpu.dtype())) << what << ", pre_activation";
}

struct Size {
  int64_t m, n, k;
};

TEST_F(CudaTest, GemmAgreesInEveryLayoutAndDType) {
  const Make inputs[] = {Dense, Strided, Swapped, Repeated};
  const Make outputs[] = {Dense, Strided, Swapped};
  for (const GemmTypes& types : kGemmTypes) {
    for (const Size& size : {Size{5, 6, 1}, Size{1, 9, 4}, Size{33, 1, 8}, Size{64, 64, 64}, Size{70, 67, 130}}) {
      for (const Make make_a : inputs) {
        for (const Make make_b : inputs) {
          for (const Make make_c : outputs) {
            const bool accumulate = make_a == Dense || make_b == Swapped;
            ExpectGemmAgrees(Pair(make_a("a", {size.m, size.k}, types.a)), Pair(make_b("b", {size.k, size.n}, types.b)),
                             Pair(make_c("c", {size.m, size.n}, types.c)), {.alpha = 0.5, .accumulate = accumulate});
          }
        }
      }
    }
  }
}

TEST_F(CudaTest, GemmOfAnEmptySumIsTheEpilogue) {
  const Pair a(Dense("a", {3, 0}, DType::kF32)), b(Dense("b", {0, 5}, DType::kF32)),
      bias(Dense("bias", {5}, DType::kF32));
  for (const bool accumulate : {false, true}) {
    ExpectGemmAgrees(a, b, Pair(Dense("c", {3, 5}, DType::kF32)), {.accumulate = accumulate, .gelu = true}, bias);
  }
}

TEST_F(CudaTest, GemmBroadcastsItsBatch) {
  struct Batch {
    Shape a, b, c;
  };
  const Batch batches[] = {{{2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}},
                           {{4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}},
                           {{2, 1, 4, 5}, {3, 5, 6}, {2, 3, 4, 6}},
                           {{7, 16, 8}, {8, 24}, {7, 16, 24}}};
  for (const GemmTypes& types : kGemmTypes) {
    for (const Batch& batch : batches) {
      for (const Make make : {Dense, Strided, Swapped}) {
        ExpectGemmAgrees(Pair(make("a", batch.a, types.a)), Pair(make("b", batch.b, types.b)),
                         Pair(make("c", batch.c, types.c)), {.accumulate = make == Strided});
      }
    }
  }
}

TEST_F(CudaTest, GemmsEpilogueAgrees) {
  for (const GemmTypes& types : kGemmTypes) {
    for (const Size& size : {Size{5, 7, 3}, Size{64, 128, 96}, Size{70, 72, 130}}) {
      for (const int bias : {0, 1, 2}) {  // none, of c's dtype, of another
        for (const bool gelu : {false, true}) {
          for (const Make make_pre : {Make(nullptr), Make(Dense), Make(Strided)}) {
            const Pair bias_pair =
                bias == 0 ? Pair() : Pair(Dense("bias", {size.n}, bias == 1 ? types.c : DType::kF64));
            const Pair pre = make_pre == nullptr ? Pair() : Pair(make_pre("pre", {size.m, size.n}, types.c));
            for (const Make make_c : {Dense, Strided, Swapped}) {
              ExpectGemmAgrees(Pair(Dense("a", {size.m, size.k}, types.a)), Pair(Dense("b", {size.k, size.n}, types.b)),
                               Pair(make_c("c", {size.m, size.n}, types.c)),
                               {.accumulate = make_c == Strided, .gelu = gelu}, bias_pair, pre);
            }
          }
        }
      }
    }
  }
}

// TF32 would be off by some 1e-4 here.
TEST_F(CudaTest, GemmOfF32IsTrueF32) {
  const Tensor a = Dense("a", {128, 4096}, DType::kF32), b = Dense("b", {4096, 128}, DType::kF32);
  const Tensor exact = Empty({128, 128}, DType::kF64), c = EmptyOn(Cuda(), {128, 128}, DType::kF32);
  const Tensor a_wide = CopyTo(a, DType::kF64), b_wide = CopyTo(b, DType::kF64);
  ops::Gemm({.a = a_wide.Read(), .b = b_wide.Read(), .c = exact.Write()});
  const Tensor a_gpu = CopyTo(a, Cuda()), b_gpu = CopyTo(b, Cuda());
  ops::Gemm({.a = a_gpu.Read(), .b = b_gpu.Read(), .c = c.Write()});
  EXPECT_LE(MaxDifference(CopyTo(c, kCpu), exact) / MaxMagnitude(exact), 5e-6);
}

TEST_F(CudaTest, LinearsGradientsGoToTargetsOfAnyDTypeAndAccumulate) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const DType target : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      for (const Size& size : {Size{3, 5, 7}, Size{300, 130, 70}, Size{5000, 64, 48}}) {
        for (const bool accumulate : {false, true}) {
          const Pair dy(Strided("dy", {size.m, size.n}, dtype)), x(Dense("x", {size.m, size.k}, dtype)),
              weight(Dense("w", {size.n, size.k}, dtype));
          const Pair dx(Dense("dx", {size.m, size.k}, target)), dweight(Dense("dw", {size.n, size.k}, target)),
              dbias(Dense("db", {size.n}, target));
          for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) {
            ops::LinearBackward({.dy = (dy.*side).Read(),
                                 .x = (x.*side).Read(),
                                 .weight = (weight.*side).Read(),
                                 .dx = (dx.*side).Write(),
                                 .dweight = (dweight.*side).Write(),
                                 .dbias = (dbias.*side).Write(),
                                 .accumulate_dx = accumulate,
                                 .accumulate_dweight = accumulate,
                                 .accumulate_dbias = accumulate});
          }
          const std::string what = Str(Name(dtype), " to ", Name(target), ", ", size.m, " rows");
          // f32 sums into an f64 target are as exact as f32 is.
          const double tolerance = dtype == DType::kF64 ? ToleranceFor(target) : std::max(5e-6, ToleranceFor(target));
          EXPECT_LE(dx.Difference(), tolerance) << what;
          EXPECT_LE(dweight.Difference(), tolerance) << what;
          EXPECT_LE(dbias.Difference(), tolerance) << what;
        }
      }
    }
  }
}

struct NormCase {
  int64_t rows, width;
};
constexpr NormCase kNormCases[] = {{1, 1},     {3, 5},      {65, 64},   {130, 768},
                                   {64, 4096}, {300, 1000}, {3, 12296}, {2, 40000}};

void RunNormForward(Tensor Pair::*side, const Pair& x, const Pair& weight, const Pair& y, const Pair& rstd,
                    const Pair& residual, const Pair& sum) {
  ops::RmsNormForwardArgs args{.x = (x.*side).Read(),
                               .weight = (weight.*side).Read(),
                               .y = (y.*side).Write(),
                               .rstd = (rstd.*side).Write(),
                               .eps = 1e-5};
  if (residual.cpu.defined()) args.residual = (residual.*side).Read(), args.sum = (sum.*side).Write();
  ops::RmsNormForward(args);
}

TEST_F(CudaTest, RmsNormAgreesInEveryWidth) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const NormCase& size : kNormCases) {
      for (const Make make : {Dense, Strided}) {
        const Shape shape{size.rows, size.width};
        const Pair x(make("x", shape, dtype)), weight(RandomTensor("w", {size.width}, 0.5, 1.5, dtype));
        const Pair residual(make("r", shape, dtype)), rstd(Dense("rstd", {size.rows}, AccumulationType(dtype)));
        const Pair y(make("y", shape, dtype)), sum(make("sum", shape, dtype));
        for (const bool fused : {false, true}) {
          for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) {
            RunNormForward(side, x, weight, y, rstd, fused ? residual : Pair(), sum);
          }
          const std::string what = Str(Name(dtype), " ", x.cpu.layout(), fused ? ", with a residual" : "");
          EXPECT_LE(y.Difference(), ToleranceFor(dtype)) << what;
          EXPECT_LE(rstd.Difference(), ToleranceFor(AccumulationType(dtype))) << what;
          if (!fused) continue;
          EXPECT_EQ(sum.Difference(), 0) << what;
        }
      }
    }
  }
}

TEST_F(CudaTest, RmsNormMayWriteOverItsInput) {
  for (const int64_t width : {40, 37, 40000}) {
    const Pair x(Dense("x", {9, width}, DType::kF32)), weight(Dense("w", {width}, DType::kF32)),
        rstd(Dense("rstd", {9}, DType::kF32)), residual(Dense("r", {9, width}, DType::kF32)), y(CopyBlock(x.cpu, kCpu));
    const Pair over_x(CopyBlock(x.cpu, kCpu));
    for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) {
      RunNormForward(side, over_x, weight, over_x, rstd, {}, {});
    }
    EXPECT_LE(over_x.Difference(), ToleranceFor(DType::kF32)) << "y over x, width " << width;
    for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) RunNormForward(side, x, weight, y, rstd, residual, x);
    EXPECT_LE(y.Difference(), ToleranceFor(DType::kF32)) << "sum over x, width " << width;
    EXPECT_EQ(x.Difference(), 0);
  }
}

TEST_F(CudaTest, RmsNormsGradientsAgreeAndAccumulate) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const DType target : {dtype, DType::kF32, DType::kF64}) {
      for (const NormCase& size : kNormCases) {
        for (const Make make : {Dense, Strided}) {
          const Shape shape{size.rows, size.width};
          const bool accumulate = make == Strided;
          const Pair x(make("x", shape, dtype)), dy(make("dy", shape, dtype)), dx(make("dx", shape, dtype)),
              dsum(make("dsum", shape, dtype)), weight(RandomTensor("w", {size.width}, 0.5, 1.5, dtype)),
              rstd(RandomTensor("rstd", {size.rows}, 0.5, 2, AccumulationType(dtype))),
              dweight(Dense("dw", {size.width}, target)),
              workspace(Dense("work", {ops::RmsNormWorkspaceNumel(size.rows, size.width)}, AccumulationType(dtype)));
          for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) {
            ops::RmsNormBackwardArgs args{.dy = (dy.*side).Read(),
                                          .x = (x.*side).Read(),
                                          .weight = (weight.*side).Read(),
                                          .rstd = (rstd.*side).Read(),
                                          .dx = (dx.*side).Write(),
                                          .dweight = (dweight.*side).Write(),
                                          .accumulate_dweight = accumulate,
                                          .workspace = (workspace.*side).Write()};
            if (accumulate) args.dsum = (dsum.*side).Read();
            ops::RmsNormBackward(args);
          }
          const std::string what = Str(Name(dtype), " to ", Name(target), " ", x.cpu.layout());
          EXPECT_LE(dx.Difference(), ToleranceFor(dtype)) << what;
          EXPECT_LE(dweight.Difference(), std::max(ToleranceFor(AccumulationType(dtype)), ToleranceFor(target)))
              << what;
        }
      }
    }
  }
}

TEST_F(CudaTest, RmsNormOfNoRowsLeavesTheWeightsGradient) {
  for (const bool accumulate : {false, true}) {
    const Pair x(Dense("x", {0, 8}, DType::kF32)), weight(Dense("w", {8}, DType::kF32)),
        rstd(Dense("rstd", {0}, DType::kF32)), dweight(Dense("dw", {8}, DType::kF32));
    for (Tensor Pair::*side : {&Pair::cpu, &Pair::gpu}) {
      ops::RmsNormBackward({.dy = (x.*side).Read(),
                            .x = (x.*side).Read(),
                            .weight = (weight.*side).Read(),
                            .rstd = (rstd.*side).Read(),
                            .dweight = (dweight.*side).Write(),
                            .accumulate_dweight = accumulate,
                            .workspace = (rstd.*side).Write()});
    }
    EXPECT_EQ(dweight.Difference(), 0);
  }
}

TEST_F(CudaTest, ASteadyStepAllocatesNothingAndGivesTheSameBits) {
  if (const char* check = std::getenv("TESSERA_CUDA_CHECK"); check != nullptr && std::string(check) == "1") {
    GTEST_SKIP() << "TESSERA_CUDA_CHECK keeps no free blocks";
  }
  Context context = CurrentContext();
  context.device = Cuda();
  const ContextGuard guard(context);
  const Tensor x = CopyTo(Dense("x", {512, 768}, DType::kBF16), Cuda()),
               weight = CopyTo(Dense("w", {1024, 768}, DType::kBF16), Cuda()),
               bias = CopyTo(Dense("b", {1024}, DType::kBF16), Cuda()),
               gain = CopyTo(Dense("g", {1024}, DType::kBF16), Cuda()),
               dy = CopyTo(Dense("dy", {512, 1024}, DType::kBF16), Cuda());
  Tensor first;
  int64_t after_first = 0;
  for (int step = 0; step < 4; ++step) {
    const Tensor h = Empty({512, 1024}, DType::kBF16), y = EmptyLike(h), dh = EmptyLike(h),
                 rstd = Empty({512}, DType::kF32);
    const Tensor dweight = Empty({1024, 768}, DType::kF32), dgain = Empty({1024}, DType::kF32),
                 workspace = Empty({ops::RmsNormWorkspaceNumel(512, 1024)}, DType::kF32, MemoryTag::kWorkspace);
    ops::LinearForward({.x = x.Read(), .weight = weight.Read(), .bias = bias.Read(), .y = h.Write()});
    ops::RmsNormForward({.x = h.Read(), .weight = gain.Read(), .y = y.Write(), .rstd = rstd.Write()});
    ops::RmsNormBackward({.dy = dy.Read(),
                          .x = h.Read(),
                          .weight = gain.Read(),
                          .rstd = rstd.Read(),
                          .dx = dh.Write(),
                          .dweight = dgain.Write(),
                          .workspace = workspace.Write()});
    ops::LinearBackward({.dy = dh.Read(), .x = x.Read(), .dweight = dweight.Write()});
    const Tensor result = CopyTo(dweight, kCpu);
    if (step == 0) {
      first = result;
      after_first = CudaAllocator(0).stats().system_allocation_count;
    }
    EXPECT_TRUE(BitEqual(result, first)) << "step " << step;
  }
  EXPECT_EQ(CudaAllocator(0).stats().system_allocation_count, after_first);
}

}  // namespace
}  // namespace tessera::testing
