// SPDX-License-Identifier: Apache-2.0
// Reads the files in tests/golden/: values and training traces of an independent implementation.
//
//   const GoldenTensors golden("ops.txt");
//   EXPECT_LE(MaxDifference(Softmax(golden["softmax.x"]), golden["softmax.y"]), 1e-14);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tensor/tensor.h"
#include "tests/support/op_case.h"

namespace tessera::testing {

// The `tensor` lines of a file, in f64. Throws Error for a file that is not there or not in this format.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::string& file_name);
  const Tensor& operator[](const std::string& name) const;  // throws Error for an unknown name

 private:
  std::string file_name_;
  std::map<std::string, Tensor> tensors_;
};

// f of <op>.<inputs...> against <op>.y, and its gradients for <op>.dy against <op>.d<input>, in f64 and in f32.
void ExpectMatchesGolden(const std::string& op, const std::vector<std::string>& inputs, const OpFunction& f);

// The `step` and `param` lines of a file.
struct GoldenTrace {
  struct Step {
    double loss, grad_norm, weight_norm;  // before the update, before clipping, after the update
  };
  std::vector<Step> steps;
  std::map<std::string, double> param_norms;  // by path, after the last step
};
GoldenTrace ReadGoldenTrace(const std::string& file_name);

}  // namespace tessera::testing
