// SPDX-License-Identifier: Apache-2.0
// One table of cases per op drives every way of testing it:
//
//   finite differences in f64; the fused op against its plain composition; bf16 and f16 against f32 on the same rounded
//   inputs; strided, transposed and expanded inputs; parameters (by reference, with garbage-filled gradient targets, once
//   of another dtype and accumulating); meta shapes; the second backward's error; the same bits on 1 and 3 threads; CUDA
//   against the CPU, where there is a GPU; guard zones around every block and NaN in fresh memory, all the time.
//
//   TESSERA_OP_CASES(RmsNorm, RmsNormCases());
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/param.h"
#include "tensor/tensor.h"

namespace tessera::testing {

struct OpInput {
  Shape shape;
  double low = -1, high = 1;  // uniform in [low, high), fixed by the case's name
  bool differentiable = true;
  int64_t index_below = 0;            // > 0: an i64 tensor of indexes in [0, index_below) instead
  std::vector<int64_t> indexes = {};  // those very indexes instead (may hold -100)
  static OpInput Index(const Shape& shape, int64_t below) {
    return {.shape = shape, .differentiable = false, .index_below = below, .indexes = {}};
  }
  static OpInput Indexes(const Shape& shape, std::vector<int64_t> values) {
    return {.shape = shape, .differentiable = false, .index_below = 1, .indexes = std::move(values)};
  }
};

// Which layouts an op promises to take for its floating inputs. What it does not promise it must refuse with an Error.
enum class Layouts {
  kAny,
  kDenseRows,  // any strides but in the last dimension
  kContiguous,
};

// What of an op has CUDA kernels.
enum class OnCuda { kNothing, kForward, kForwardAndBackward };

using OpFunction = std::function<std::vector<Tensor>(std::span<const Input>)>;

struct OpCase {
  std::string name;  // CamelCase words, unique in the suite
  std::vector<OpInput> inputs;
  OpFunction run;
  OpFunction composition = nullptr;  // the plain version, for fused ops
  Layouts layouts = Layouts::kAny;
  double finite_difference_tolerance = 1e-7;  // on gradients of a sum with weights of order 1
  double low_precision_ulps = 4;              // of the largest magnitude in the compared tensor
  bool low_precision = true;
  bool parameters = true;  // inputs may be parameters
  OnCuda cuda = OnCuda::kNothing;
};

inline void PrintTo(const OpCase& op_case, std::ostream* out) { *out << op_case.name; }

class OpCaseTest : public ::testing::TestWithParam<OpCase> {};
class FusedOpCaseTest : public ::testing::TestWithParam<OpCase> {};  // the cases that have a composition
class CudaOpCaseTest : public ::testing::TestWithParam<OpCase> {};   // the cases that have CUDA kernels
std::string OpCaseName(const ::testing::TestParamInfo<OpCase>& info);
std::vector<OpCase> FusedCases(std::vector<OpCase> cases);
std::vector<OpCase> CudaCases(std::vector<OpCase> cases);

#define TESSERA_OP_CASES(Suite, cases)                                                                  \
  INSTANTIATE_TEST_SUITE_P(Suite, OpCaseTest, ::testing::ValuesIn(cases), OpCaseName);                  \
  INSTANTIATE_TEST_SUITE_P(Suite, FusedOpCaseTest, ::testing::ValuesIn(FusedCases(cases)), OpCaseName); \
  INSTANTIATE_TEST_SUITE_P(Suite, CudaOpCaseTest, ::testing::ValuesIn(CudaCases(cases)), OpCaseName)

// A parameter for tests: data of its own, a NaN-filled gradient target in `grad_dtype`.
class TestParameter final : public ParamSource {
 public:
  TestParameter(std::string path, const Tensor& data, DType grad_dtype);
  const std::string& path() const override { return path_; }
  const Shape& shape() const override { return data_.shape(); }
  DType dtype() const override { return data_.dtype(); }
  bool requires_grad() const override { return requires_grad_; }
  Tensor Data() override;
  GradTarget NextGradTarget() override;
  void GradReady() override { ++ready_count; }

  void SetRequiresGrad(bool value) { requires_grad_ = value; }
  const Tensor& grad() const { return grad_; }
  int data_count = 0;    // how often the data was asked for
  int target_count = 0;  // how often a gradient was written
  int ready_count = 0;

 private:
  std::string path_;
  Tensor data_, grad_;
  bool requires_grad_ = true;
};

// Largest |a - b| over all elements; infinite when shapes differ or exactly one of a pair is NaN.
double MaxDifference(const Tensor& a, const Tensor& b);
double MaxMagnitude(const Tensor& a);
bool BitEqual(const Tensor& a, const Tensor& b);
// Uniform values in [low, high) as f64, fixed by `key`.
Tensor RandomTensor(const std::string& key, const Shape& shape, double low = -1, double high = 1,
                    DType dtype = DType::kF64);
// Runs f and returns the message of the Error it throws; fails the test when it throws none.
std::string ErrorOf(const std::function<void()>& f);

}  // namespace tessera::testing
