// SPDX-License-Identifier: Apache-2.0
#include "autograd/swiglu.h"

#include <cmath>

#include "autograd/custom.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

Tensor PlainSwiGlu(const Input& gate, const Input& up) {
  return CustomFunction(
      "plain_swiglu", {gate, up},
      [](SavedValues& save, std::span<const Tensor> in) {
        save.Keep(0);
        save.Keep(1);
        std::vector<double> y = in[0].ToVector();
        const std::vector<double> u = in[1].ToVector();
        for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] / (1 + std::exp(-y[i])) * u[i];
        return CopyTo(Tensor::From(y, in[0].shape()), in[0].dtype());
      },
      [](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        const std::vector<double> g = saved[0].ToVector(), u = saved[1].ToVector(), d = dy.ToVector();
        std::vector<double> dgate(g.size()), dup(g.size());
        for (size_t i = 0; i < g.size(); ++i) {
          const double s = 1 / (1 + std::exp(-g[i]));
          dgate[i] = d[i] * u[i] * (s + g[i] * s * (1 - s));
          dup[i] = d[i] * g[i] * s;
        }
        const Tensor gate = saved[0];
        return {CopyTo(Tensor::From(dgate, gate.shape()), gate.dtype()),
                CopyTo(Tensor::From(dup, gate.shape()), gate.dtype())};
      });
}

std::vector<OpCase> SwiGluCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& x) {
    cases.push_back(
        {.name = name,
         .inputs = {{x, -3, 3}, {x}},
         .run = [](std::span<const Input> in) { return std::vector<Tensor>{SwiGlu(in[0], in[1])}; },
         .composition = [](std::span<const Input> in) { return std::vector<Tensor>{PlainSwiGlu(in[0], in[1])}; }});
  };
  add("Rows", {3, 8});
  add("OneElement", {1, 1});
  add("OddWidth", {2, 3, 37});
  add("SeveralBlocks", {3, 1200});
  add("NoRows", {0, 4});
  add("NoColumns", {3, 0});
  return cases;
}

TESSERA_OP_CASES(SwiGlu, SwiGluCases());

TEST(SwiGlu, MatchesPyTorch) {
  ExpectMatchesGolden("swiglu", {"gate", "up"},
                      [](std::span<const Input> in) { return std::vector<Tensor>{SwiGlu(in[0], in[1])}; });
}

TEST(SwiGlu, TakesTheHalvesOfAPackedProjection) {
  const Tensor packed = RandomTensor("packed", {4, 6});
  const Tensor gate = packed.WithLayout(packed.layout().Narrow(1, 0, 3));
  const Tensor up = packed.WithLayout(packed.layout().Narrow(1, 3, 3));
  EXPECT_TRUE(BitEqual(SwiGlu(gate, up), SwiGlu(CopyTo(gate, DType::kF64), CopyTo(up, DType::kF64))));
}

TEST(SwiGlu, RefusesHalvesOfDifferentShape) {
  const Tensor gate = RandomTensor("gate", {2, 4}), up = RandomTensor("up", {2, 3});
  EXPECT_EQ(ErrorOf([&] { SwiGlu(gate, up); }), "swiglu: gate has shape (2, 4), up has (2, 3); they must be equal");
}

}  // namespace
}  // namespace tessera::testing
