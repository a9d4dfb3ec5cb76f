// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating types as plain bits, with round-to-nearest-even conversion from and to f32.
//
// Always inlined, so that a kernel compiled for a newer instruction set never lends its copy to the baseline.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

#define TESSERA_ALWAYS_INLINE inline __attribute__((always_inline))

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

TESSERA_ALWAYS_INLINE float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

TESSERA_ALWAYS_INLINE BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;  // rounding could carry a NaN into infinity
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

TESSERA_ALWAYS_INLINE float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7FFFu) << 13;
  if (magnitude >= 0x0F800000u) {  // infinity and NaN
    return std::bit_cast<float>(sign | magnitude | 0x7F800000u);
  }
  // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals exactly.
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000u);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

TESSERA_ALWAYS_INLINE Float16 ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t result;
  if (magnitude > 0x7F800000u) {
    result = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {  // rounds past 65504
    result = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 lets the FPU round at the right bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    result = std::bit_cast<uint32_t>(shifted) - 0x3F000000u;
  } else {
    result = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

}  // namespace tessera
