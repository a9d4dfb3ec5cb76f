// SPDX-License-Identifier: Apache-2.0
#include "autograd/norm.h"

#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

std::vector<OpCase> RmsNormCases() {
  const auto run = [](std::span<const Input> in) { return std::vector<Tensor>{RmsNorm(in[0], in[1], 1e-5)}; };
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& x) {
    cases.push_back({.name = name, .inputs = {{x}, {{x.back()}, 0.5, 1.5}}, .run = run, .layouts = Layouts::kDenseRows});
  };
  add("Rows", {3, 8});
  add("OneElement", {1, 1});
  add("OddWidth", {2, 3, 37});
  add("ManyRows", {150, 5});
  add("NoRows", {0, 4});
  return cases;
}

TESSERA_OP_CASES(RmsNorm, RmsNormCases());

TEST(RmsNorm, RefusesAWeightOfAnotherWidth) {
  const Tensor x = RandomTensor("x", {2, 4}), weight = RandomTensor("w", {3});
  EXPECT_EQ(ErrorOf([&] { RmsNorm(x, weight, 1e-5); }), "rms_norm: weight has shape (3), expected (4)");
}

}  // namespace
}  // namespace tessera::testing
