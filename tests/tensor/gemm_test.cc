// SPDX-License-Identifier: Apache-2.0
// The matrix product against a plain triple loop in f64. TESSERA_ISA=base and =avx2 run the same tests on the other
// kernels.
#include "tensor/ops/gemm.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/context.h"
#include "tensor/ops/copy.h"
#include "tensor/rng.h"
#include "tensor/tensor.h"
#include "tensor/thread_pool.h"

namespace tessera {
namespace {

enum class Form { kRows, kColumns, kPaddedRows, kSliced, kSameRow, kSameColumn, kOneElement };
constexpr Form kInputForms[] = {Form::kRows,    Form::kColumns,    Form::kPaddedRows, Form::kSliced,
                                Form::kSameRow, Form::kSameColumn, Form::kOneElement};
constexpr Form kOutputForms[] = {Form::kPaddedRows, Form::kColumns, Form::kSliced};

// The layout of a (rows, cols) matrix in a form, and how many elements lie below it. Offset 3: nothing is aligned.
Layout LayoutOf(Form form, int64_t rows, int64_t cols) {
  switch (form) {
    case Form::kRows:
      return Layout({rows, cols}, {cols, 1}, 3);
    case Form::kColumns:
      return Layout({rows, cols}, {1, rows + 1}, 3);
    case Form::kPaddedRows:
      return Layout({rows, cols}, {cols + 5, 1}, 3);
    case Form::kSliced:
      return Layout({rows, cols}, {3 * cols + 2, 3}, 3);
    case Form::kSameRow:
      return Layout({rows, cols}, {0, 1}, 3);
    case Form::kSameColumn:
      return Layout({rows, cols}, {1, 0}, 3);
    case Form::kOneElement:
      return Layout({rows, cols}, {0, 0}, 3);
  }
  return {};
}

Tensor Flat(int64_t numel, DType dtype, uint64_t seed) {
  const RngKey key(seed);
  std::vector<float> values(static_cast<size_t>(numel));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.Uniform(i) - 1;
  return CopyTo(Tensor::From(values, {numel}), dtype);
}

Tensor Matrix(Form form, int64_t rows, int64_t cols, DType dtype, uint64_t seed) {
  const Layout layout = LayoutOf(form, rows, cols);
  return Flat(layout.EndOffset() + 7, dtype, seed).WithLayout(layout);  // a little more, to see it untouched
}

// What rounding to dtype may change in a value of this magnitude, with a floor at f16's subnormals.
double HalfUlp(DType dtype, double magnitude) {
  switch (dtype) {
    case DType::kBF16:
      return magnitude / 256;
    case DType::kF16:
      return magnitude / 2048 + std::ldexp(1.0, -25);
    case DType::kF32:
      return magnitude * std::ldexp(1.0, -24);
    default:
      return magnitude * std::ldexp(1.0, -53);
  }
}

struct Case {
  int64_t m, n, k;
  DType input = DType::kF32, output = DType::kF32;
  Form a = Form::kRows, b = Form::kRows, c = Form::kPaddedRows;
  double alpha = 1;
  bool accumulate = false;

  std::string ToString() const {
    return Str("m ", m, " n ", n, " k ", k, " ", Name(input), "->", Name(output), " forms ", static_cast<int>(a), " ",
               static_cast<int>(b), " ", static_cast<int>(c), " alpha ", alpha, " accumulate ", accumulate);
  }
};

// Runs the case and compares every element, and every element of c's memory that is not c's.
void Check(const Case& test) {
  SCOPED_TRACE(test.ToString());
  const Tensor a = Matrix(test.a, test.m, test.k, test.input, 1);
  const Tensor b = Matrix(test.b, test.k, test.n, test.input, 2);
  const Tensor c = Matrix(test.c, test.m, test.n, test.output, 3);
  const Tensor whole = c.WithLayout(Layout::Contiguous({c.storage()->bytes() / ItemSize(test.output)}));
  const std::vector<double> before = c.ToVector(), whole_before = whole.ToVector();
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write(), .alpha = test.alpha, .accumulate = test.accumulate});
  const std::vector<double> a_values = a.ToVector(), b_values = b.ToVector(), c_values = c.ToVector();

  const bool f64 = test.input == DType::kF64 || test.output == DType::kF64;
  const double sum_epsilon = f64 ? std::ldexp(1.0, -53) : std::ldexp(1.0, -24);
  std::vector<double> expected_whole = whole_before;
  for (int64_t i = 0; i < test.m; ++i) {
    for (int64_t j = 0; j < test.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < test.k; ++k) {
        const double product =
            a_values[static_cast<size_t>(i * test.k + k)] * b_values[static_cast<size_t>(k * test.n + j)];
        sum += product;
        magnitude += std::abs(product);
      }
      const size_t at = static_cast<size_t>(i * test.n + j);
      const double expected = test.alpha * sum + (test.accumulate ? before[at] : 0.0);
      const double scale = std::abs(test.alpha) * magnitude + (test.accumulate ? std::abs(before[at]) : 0.0);
      const double tolerance = sum_epsilon * scale * (2 + 3 * std::sqrt(static_cast<double>(test.k))) +
                               HalfUlp(test.output, std::abs(expected)) * 1.01;
      ASSERT_LE(std::abs(c_values[at] - expected), tolerance)
          << "at (" << i << ", " << j << "): " << c_values[at] << ", expected " << expected;
      expected_whole[static_cast<size_t>(c.layout().offset() + i * c.layout().stride(0) + j * c.layout().stride(1))] =
          c_values[at];
    }
  }
  ASSERT_EQ(whole.ToVector(), expected_whole) << "memory beside c was written";
}

TEST(Gemm, MatchesTheTripleLoopAtAllSizes) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (int64_t m : {0, 1, 2, 5, 6, 7, 13, 14, 15, 29}) {
      for (int64_t n : {0, 1, 8, 15, 16, 17, 31, 33, 65}) {
        for (int64_t k : {0, 1, 3, 4, 16, 19}) Check({.m = m, .n = n, .k = k, .input = dtype, .output = dtype});
      }
    }
  }
}

TEST(Gemm, MatchesTheTripleLoopWhereBlocksAndPiecesAreCut) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{300, 70, 257},
                                  {57, 300, 520},
                                  {290, 1100, 40},
                                  {1, 1000, 300},
                                  {700, 1, 300},
                                  {64, 64, 1000},
                                  {281, 257, 256},
                                  {600, 64, 33},
                                  {100, 900, 530}}) {
      for (Form b : {Form::kRows, Form::kColumns}) {
        Check({.m = m, .n = n, .k = k, .input = dtype, .output = dtype, .b = b});
        Check(
            {.m = m, .n = n, .k = k, .input = dtype, .output = dtype, .a = Form::kColumns, .b = b, .accumulate = true});
      }
    }
  }
}

TEST(Gemm, TakesAnyStrides) {
  for (Form a : kInputForms) {
    for (Form b : kInputForms) {
      for (Form c : kOutputForms) {
        for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
          Check({.m = 23, .n = 45, .k = 37, .input = dtype, .output = dtype, .a = a, .b = b, .c = c});
          Check({.m = 31, .n = 3, .k = 5, .input = dtype, .output = dtype, .a = a, .b = b, .c = c, .accumulate = true});
        }
      }
    }
  }
}

TEST(Gemm, LowPrecisionIsRoundedOnce) {
  for (DType input : {DType::kBF16, DType::kF16}) {
    for (Form a : {Form::kRows, Form::kColumns}) {
      for (Form b : {Form::kRows, Form::kColumns}) {
        for (DType output : {input, DType::kF32}) {
          for (bool accumulate : {false, true}) {
            Check({.m = 17,
                   .n = 35,
                   .k = 1500,
                   .input = input,
                   .output = output,
                   .a = a,
                   .b = b,
                   .accumulate = accumulate});
            Check({.m = 150,
                   .n = 140,
                   .k = 300,
                   .input = input,
                   .output = output,
                   .a = a,
                   .b = b,
                   .accumulate = accumulate});
          }
        }
      }
    }
  }
}

TEST(Gemm, TakesAnyPairOfInputAndOutputTypes) {
  for (DType input : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (DType output : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      for (Form c : kOutputForms) {
        Check({.m = 20, .n = 34, .k = 21, .input = input, .output = output, .c = c, .alpha = -0.5, .accumulate = true});
      }
    }
  }
}

TEST(Gemm, InputsMayDifferInType) {
  const Tensor a = Matrix(Form::kRows, 20, 30, DType::kF32, 1), b = Matrix(Form::kRows, 30, 40, DType::kBF16, 2);
  const Tensor mixed = Empty({20, 40}, DType::kF32), same = Empty({20, 40}, DType::kF32);
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = mixed.Write()});
  ops::Gemm({.a = a.Read(), .b = CopyTo(b, DType::kF32).Read(), .c = same.Write()});
  EXPECT_EQ(mixed.ToVector(), same.ToVector());
}

TEST(Gemm, AlphaAndAccumulate) {
  for (double alpha : {1.0, -2.5, 0.0}) {
    for (bool accumulate : {false, true}) {
      for (int64_t k : {int64_t{0}, int64_t{5}, int64_t{600}}) {
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          Check({.m = 33, .n = 50, .k = k, .input = dtype, .output = dtype, .alpha = alpha, .accumulate = accumulate});
        }
      }
    }
  }
}

TEST(Gemm, WithoutAccumulateWhatCHeldDoesNotMatter) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t k : {0, 7, 300}) {
      const Tensor a = Matrix(Form::kRows, 9, k, dtype, 1), b = Matrix(Form::kRows, k, 40, dtype, 2);
      const Tensor c = Full({9, 40}, dtype, std::nan(""));
      ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write()});
      for (double value : c.ToVector()) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Gemm, NanAndInfinityReachTheirRowsAndColumnsOnly) {
  const Tensor a = Full({20, 40}, DType::kF32, 1), b = Full({40, 50}, DType::kF32, 1), c = Empty({20, 50}, DType::kF32);
  a.Write().as<float>()[3 * 40 + 39] = NAN;
  b.Write().as<float>()[7 * 50 + 49] = INFINITY;
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write()});
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 50; ++j) {
      if (i == 3) {
        EXPECT_TRUE(std::isnan(c.At(i, j)));
      } else {
        EXPECT_EQ(c.At(i, j), j == 49 ? INFINITY : 40.0);
      }
    }
  }
}

TEST(Gemm, LeadingDimensionsBroadcast) {
  struct Shapes {
    Shape a, b, c;
  };
  for (const Shapes& shapes :
       {Shapes{{2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}}, Shapes{{3, 4, 5}, {5, 6}, {3, 4, 6}},
        Shapes{{4, 5}, {3, 5, 6}, {3, 4, 6}}, Shapes{{2, 1, 4, 5}, {3, 5, 6}, {2, 3, 4, 6}},
        Shapes{{2, 1, 4, 5}, {1, 3, 5, 6}, {2, 3, 4, 6}}, Shapes{{0, 4, 5}, {5, 6}, {0, 4, 6}}}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor a = Flat(shapes.a.numel(), dtype, 1).WithLayout(Layout::Contiguous(shapes.a));
      const Tensor b = Flat(shapes.b.numel(), dtype, 2).WithLayout(Layout::Contiguous(shapes.b));
      const Tensor c = Empty(shapes.c, DType::kF32);
      ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write()});
      const Shape batch(std::span<const int64_t>(shapes.c.begin(), shapes.c.end() - 2));
      Shape a_shape = batch, b_shape = batch;
      for (int64_t size : {4, 5}) a_shape.push_back(size);
      for (int64_t size : {5, 6}) b_shape.push_back(size);
      const std::vector<double> a_values = a.WithLayout(a.layout().Expand(a_shape)).ToVector();
      const std::vector<double> b_values = b.WithLayout(b.layout().Expand(b_shape)).ToVector();
      const std::vector<double> c_values = c.ToVector();
      for (int64_t i = 0; i < c.numel(); ++i) {
        double expected = 0;
        for (int64_t k = 0; k < 5; ++k) {
          expected += a_values[static_cast<size_t>(i / 6 * 5 + k)] *
                      b_values[static_cast<size_t>((i / 24 * 5 + k) * 6 + i % 6)];
        }
        ASSERT_NEAR(c_values[static_cast<size_t>(i)], expected, 1e-6);
      }
    }
  }
}

TEST(Gemm, AStridedBatchIsTheProductOfEachMatrix) {
  // Heads as attention has them: (B, T, H, D) permuted to (B, H, T, D).
  const int order[] = {0, 2, 1, 3};
  const Shape stored{2, 9, 3, 4};
  const Tensor q_memory = Flat(stored.numel(), DType::kF32, 1), k_memory = Flat(stored.numel(), DType::kF32, 2);
  const Tensor q = q_memory.WithLayout(Layout::Contiguous(stored).Permute(order));
  const Tensor key = k_memory.WithLayout(Layout::Contiguous(stored).Permute(order).Transpose(2, 3));
  const Tensor c = Empty({2, 3, 9, 9}, DType::kF32);
  ops::Gemm({.a = q.Read(), .b = key.Read(), .c = c.Write()});
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (int64_t head = 0; head < 3; ++head) {
      const Tensor one = Empty({9, 9}, DType::kF32);
      ops::Gemm({.a = q.WithLayout(q.layout().Select(0, batch).Select(0, head)).Read(),
                 .b = key.WithLayout(key.layout().Select(0, batch).Select(0, head)).Read(),
                 .c = one.Write()});
      EXPECT_EQ(c.WithLayout(c.layout().Select(0, batch).Select(0, head)).ToVector(), one.ToVector());
    }
  }
}

TEST(Gemm, EpilogueAddsTheBiasAndAppliesGelu) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (Form form : {Form::kPaddedRows, Form::kColumns, Form::kSliced}) {
      for (int64_t n : {1, 35, 700}) {
        const Tensor a = Matrix(Form::kRows, 20, 30, dtype, 1), b = Matrix(Form::kColumns, 30, n, dtype, 2);
        const Tensor bias = Flat(2 * n, dtype, 4).WithLayout(Layout({n}, {2}, 0));
        const Tensor c = Matrix(form, 20, n, dtype, 3), pre = Matrix(form, 20, n, dtype, 3);
        const Tensor plain = Empty({20, n}, AccumulationType(dtype));
        ops::Gemm({.a = a.Read(), .b = b.Read(), .c = plain.Write()});
        ops::Gemm({.a = a.Read(),
                   .b = b.Read(),
                   .c = c.Write(),
                   .bias = bias.Read(),
                   .pre_activation = pre.Write(),
                   .gelu = true});
        for (int64_t i = 0; i < 20; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const double s = plain.At(i, j) + bias.At(j);
            const double gelu = 0.5 * s * (1 + std::tanh(std::sqrt(2 / M_PI) * (s + 0.044715 * s * s * s)));
            const double epsilon = dtype == DType::kF64 ? 1e-14 : 1e-6;
            ASSERT_NEAR(pre.At(i, j), s, HalfUlp(dtype, std::abs(s)) * 1.01 + epsilon);
            ASSERT_NEAR(c.At(i, j), gelu, HalfUlp(dtype, std::abs(gelu)) * 1.01 + epsilon * 4);
          }
        }
      }
    }
  }
}

// The bytes of a product on a pool of this many threads.
std::vector<char> BytesWith(int threads, const Case& test) {
  ThreadPool pool(threads);
  Context context;
  context.thread_pool = &pool;
  const ContextGuard guard(context);
  const Tensor a = Matrix(test.a, test.m, test.k, test.input, 1), b = Matrix(test.b, test.k, test.n, test.input, 2);
  const Tensor c = Full({test.m, test.n}, test.output, 0.25);
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write(), .accumulate = test.accumulate});
  const char* data = static_cast<const char*>(c.Read().data);
  return std::vector<char>(data, data + c.bytes());
}

TEST(Gemm, TheBitsDoNotDependOnTheNumberOfThreads) {
  for (Case test : {Case{.m = 256, .n = 768, .k = 600}, Case{.m = 900, .n = 300, .k = 256, .a = Form::kColumns},
                    Case{.m = 600, .n = 1100, .k = 300, .b = Form::kColumns, .accumulate = true},
                    Case{.m = 256, .n = 700, .k = 600, .input = DType::kBF16, .output = DType::kBF16},
                    Case{.m = 100, .n = 640, .k = 9000, .b = Form::kColumns},
                    Case{.m = 100, .n = 640, .k = 9000, .input = DType::kBF16, .output = DType::kBF16},
                    Case{.m = 500, .n = 500, .k = 500, .input = DType::kF64, .output = DType::kF64}}) {
    SCOPED_TRACE(test.ToString());
    const std::vector<char> one = BytesWith(1, test);
    EXPECT_EQ(BytesWith(2, test), one);
    EXPECT_EQ(BytesWith(3, test), one);
    EXPECT_EQ(BytesWith(7, test), one);
  }
}

TEST(Gemm, AnElementHasTheSameBitsInAnyProduct) {
  if (ActiveIsa() == CpuIsa::kBase) GTEST_SKIP() << "on the baseline Eigen multiplies, and promises less";
  const int64_t m = 700, n = 1100, k = 600;
  const Tensor a = Matrix(Form::kRows, m, k, DType::kF32, 1), b = Matrix(Form::kRows, k, n, DType::kF32, 2);
  const Tensor whole = Empty({m, n}, DType::kF32);
  ops::Gemm({.a = a.Read(), .b = b.Read(), .c = whole.Write()});
  for (const auto& [row, rows, col, cols] :
       {std::array<int64_t, 4>{0, 1, 0, 1100}, {17, 100, 600, 333}, {350, 350, 7, 1}}) {
    const Tensor part = Empty({rows, cols}, DType::kF32);
    ops::Gemm({.a = a.WithLayout(a.layout().Narrow(0, row, rows)).Read(),
               .b = b.WithLayout(b.layout().Narrow(1, col, cols)).Read(),
               .c = part.Write()});
    EXPECT_EQ(part.ToVector(), whole.WithLayout(whole.layout().Narrow(0, row, rows).Narrow(1, col, cols)).ToVector());
  }
}

TEST(Gemm, LongSumsKeepTheirAccuracy) {
  // Several rounds of shared packing; checked at a few elements.
  const int64_t m = 270, n = 600, k = 9000;
  for (DType output : {DType::kF32, DType::kBF16}) {
    const Tensor a = Matrix(Form::kRows, m, k, DType::kF32, 1), b = Matrix(Form::kColumns, k, n, DType::kF32, 2);
    const Tensor c = Empty({m, n}, output);
    ops::Gemm({.a = a.Read(), .b = b.Read(), .c = c.Write()});
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t row = i * 37 % m, col = i * 101 % n;
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += a.At(row, j) * b.At(j, col);
      ASSERT_NEAR(c.At(row, col), sum, 1e-3 + HalfUlp(output, std::abs(sum)) * 1.01);
    }
  }
}

TEST(Gemm, IndexesAreSixtyFourBit) {
  // Two rows 2^31 elements apart: only the pages in use are ever touched.
  const int64_t distance = (int64_t{1} << 31) + 12345;
  const Tensor memory = Empty({distance + 100}, DType::kBF16);
  const Tensor a = memory.WithLayout(Layout({2, 40}, {distance, 1}, 0));
  const Tensor values = Matrix(Form::kRows, 2, 40, DType::kBF16, 1);
  ops::Copy({.x = values.Read(), .out = a.Write()});
  const Tensor b = Matrix(Form::kRows, 40, 9, DType::kBF16, 2);
  for (bool transposed : {false, true}) {
    const Tensor far = Empty({2, 9}, DType::kF32), near = Empty({2, 9}, DType::kF32);
    const auto flip = [&](const Tensor& x) { return transposed ? x.WithLayout(x.layout().Transpose(0, 1)) : x; };
    const auto multiply = [&](const Tensor& left, const Tensor& out) {
      transposed ? ops::Gemm({.a = flip(b).Read(), .b = flip(left).Read(), .c = flip(out).Write()})
                 : ops::Gemm({.a = left.Read(), .b = b.Read(), .c = out.Write()});
    };
    multiply(a, far);
    multiply(values, near);
    EXPECT_EQ(far.ToVector(), near.ToVector());
  }
}

// Memory that ends where an unreadable page begins.
class Fenced {
 public:
  explicit Fenced(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    mapped_bytes_ = static_cast<size_t>((pages + 1) * page);
    start_ =
        static_cast<char*>(mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(start_ + pages * page, static_cast<size_t>(page), PROT_NONE);
    data_ = start_ + pages * page - bytes;
  }
  ~Fenced() { munmap(start_, mapped_bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  void* data() const { return data_; }

 private:
  size_t mapped_bytes_;
  char *start_, *data_;
};

TEST(Gemm, NothingBehindTheInputsIsRead) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{1, 1, 1}, {13, 31, 15}, {14, 32, 16}, {29, 70, 33}, {57, 15, 300}}) {
      for (bool transposed : {false, true}) {
        const Fenced a(m * k * ItemSize(dtype)), b(k * n * ItemSize(dtype)), c(m * n * ItemSize(dtype));
        const auto layout = [&](int64_t rows, int64_t cols) {
          return transposed ? Layout::Contiguous({cols, rows}).Transpose(0, 1) : Layout::Contiguous({rows, cols});
        };
        ops::Gemm({.a = {a.data(), layout(m, k), dtype, kCpu},
                   .b = {b.data(), layout(k, n), dtype, kCpu},
                   .c = {c.data(), layout(m, n), dtype, kCpu}});
        const View sum{c.data(), Layout::Contiguous({m * n}), dtype, kCpu};
        const Tensor values = Empty({m * n}, DType::kF64);
        ops::Copy({.x = sum, .out = values.Write()});
        for (double value : values.ToVector()) ASSERT_EQ(value, 0);
      }
    }
  }
}

TEST(Gemm, OnMetaNothingIsComputed) {
  const ContextGuard guard(Context{.device = kMeta});
  const Tensor a = Empty({1 << 20, 1 << 20}, DType::kBF16), c = Empty({1 << 20, 1 << 20}, DType::kBF16);
  ops::Gemm({.a = a.Read(), .b = a.Read(), .c = c.Write()});
}

std::string ErrorOf(const ops::GemmArgs& args) {
  try {
    ops::Gemm(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Gemm, ErrorsSayWhatCameAndWhatIsLegal) {
  const Tensor a = Zeros({4, 5}, DType::kF32), b = Zeros({5, 6}, DType::kF32), c = Zeros({4, 6}, DType::kF32);
  const Tensor vector = Zeros({5}, DType::kF32), integers = Zeros({4, 5}, DType::kI32);
  EXPECT_EQ(ErrorOf({.a = a.Read(), .b = a.Read(), .c = c.Write()}),
            "matmul: a (4, 5) has 5 columns, b (4, 5) has 4 rows; they must be equal");
  EXPECT_EQ(ErrorOf({.a = vector.Read(), .b = b.Read(), .c = c.Write()}),
            "matmul: a must have at least two dimensions, got shape (5)");
  EXPECT_EQ(ErrorOf({.a = integers.Read(), .b = b.Read(), .c = c.Write()}),
            "matmul: a is i32, expected f32, bf16, f16 or f64");
  EXPECT_EQ(ErrorOf({.a = a.Read(), .b = b.Read(), .c = a.Write()}), "matmul: c has shape (4, 5), expected (4, 6)");
  const Tensor expanded = vector.WithLayout(Layout({4, 6}, {0, 0}, 0));
  EXPECT_EQ(
      ErrorOf({.a = a.Read(), .b = b.Read(), .c = expanded.Write()}),
      "matmul: c names one element under several indexes (shape (4, 6) strides (0, 0) offset 0); write to a dense "
      "tensor");
  const Tensor batch2 = Zeros({2, 4, 5}, DType::kF32), batch3 = Zeros({3, 5, 6}, DType::kF32);
  EXPECT_NE(ErrorOf({.a = batch2.Read(), .b = batch3.Read(), .c = c.Write()}).find("matmul: "), std::string::npos);
  EXPECT_EQ(ErrorOf({.a = a.Read(), .b = b.Read(), .c = c.Write(), .bias = vector.Read()}),
            "matmul: bias has shape (5), expected (6)");
  EXPECT_EQ(ErrorOf({.a = a.Read(), .b = b.Read(), .c = c.Write(), .pre_activation = a.Write()}),
            "matmul: c has shape (4, 6), pre_activation has (4, 5); they must be equal");
  EXPECT_EQ(ErrorOf({.a = a.Read(), .b = EmptyOn(kMeta, {5, 6}, DType::kF32).Read(), .c = c.Write()}),
            "matmul: a is on cpu, b is on meta; they must be equal");
}

}  // namespace
}  // namespace tessera
