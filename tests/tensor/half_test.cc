// SPDX-License-Identifier: Apache-2.0
// The 16-bit types against Eigen's, scalar by scalar and through the copy kernel.
#include "tensor/half.h"

#include <cmath>

#include <Eigen/Core>

#include "tensor/ops/copy.h"
#include "tensor/rng.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

float EigenFloat(BFloat16 x) { return static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(x.bits)); }
float EigenFloat(Float16 x) { return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(x.bits)); }
uint16_t EigenBits(BFloat16, float x) { return Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(x)); }
uint16_t EigenBits(Float16, float x) { return Eigen::numext::bit_cast<uint16_t>(Eigen::half(x)); }
BFloat16 Rounded(BFloat16, float x) { return ToBFloat16(x); }
Float16 Rounded(Float16, float x) { return ToFloat16(x); }

template <class T>
class HalfTest : public ::testing::Test {};
using HalfTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, HalfTypes);

TYPED_TEST(HalfTest, EveryPatternWidensExactly) {
  std::vector<TypeParam> all(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) all[bits] = TypeParam{static_cast<uint16_t>(bits)};
  const Tensor wide = CopyTo(Tensor::From(all, {65536}), DType::kF32);
  const float* copied = wide.Read().as<float>();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float expected = EigenFloat(all[bits]), got = ToFloat(all[bits]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got) && std::isnan(copied[bits])) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected)) << bits;
      ASSERT_EQ(std::bit_cast<uint32_t>(copied[bits]), std::bit_cast<uint32_t>(expected)) << bits;
      ASSERT_EQ(Rounded(TypeParam{}, got).bits, bits) << "there and back";
    }
  }
}

template <class T>
void ExpectRoundsAsEigen(const std::vector<float>& values) {
  const Tensor narrow = CopyTo(Tensor::From(values, {static_cast<int64_t>(values.size())}), DTypeOf<T>());
  const T* copied = narrow.Read().template as<T>();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(ToFloat(Rounded(T{}, values[i])))) << std::hex << bits;
      ASSERT_TRUE(std::isnan(ToFloat(copied[i]))) << std::hex << bits;
    } else {
      const uint16_t expected = EigenBits(T{}, values[i]);
      ASSERT_EQ(Rounded(T{}, values[i]).bits, expected) << std::hex << bits;
      ASSERT_EQ(copied[i].bits, expected) << std::hex << bits;
    }
  }
}

TYPED_TEST(HalfTest, RoundsToNearestEvenAtEveryBoundary) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float low = ToFloat(TypeParam{static_cast<uint16_t>(bits)});
    const float high = ToFloat(TypeParam{static_cast<uint16_t>(bits + 1)});
    // Around the value, and around the middle between it and the next one (or, at the top, where the next one would be).
    const double step =
        std::isfinite(high) ? static_cast<double>(high) - low : std::abs(static_cast<double>(low)) * 0x1p-9;
    for (const float centre : {low, static_cast<float>(low + step / 2)}) {
      const uint32_t at = std::bit_cast<uint32_t>(centre);
      for (uint32_t offset = 0; offset < 5; ++offset) values.push_back(FloatOf(at + offset - 2));
    }
  }
  ExpectRoundsAsEigen<TypeParam>(values);
}

TYPED_TEST(HalfTest, RoundsRandomPatternsToNearestEven) {
  std::vector<float> values;
  for (uint64_t i = 0; i < (1 << 20); ++i) values.push_back(FloatOf(RngKey(4).Bits(i)));
  ExpectRoundsAsEigen<TypeParam>(values);
}

}  // namespace
}  // namespace tessera::testing
