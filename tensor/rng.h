// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: value = f(key, element). There is no generator object, so nothing has to be saved, and
// any part of a tensor can be drawn anywhere, in any order, with the same bits.
//
// Philox4x32-10: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
//
//   RngKey key = RngKey(seed).With("blocks.0.mlp.c_fc.weight");
//   float u = key.Uniform(i);      // in [0, 1)
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tensor/half.h"

namespace tessera {

using PhiloxBlock = std::array<uint32_t, 4>;

TESSERA_ALWAYS_INLINE PhiloxBlock Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

class RngKey {
 public:
  constexpr explicit RngKey(uint64_t seed) : bits_(Mix(seed)) {}

  constexpr RngKey With(uint64_t part) const { return FromBits(Mix(bits_ ^ Mix(part))); }
  constexpr RngKey With(std::string_view text) const {
    uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
    for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return With(hash);
  }
  constexpr uint64_t bits() const { return bits_; }
  static constexpr RngKey FromBits(uint64_t bits) {
    RngKey key(0);
    key.bits_ = bits;
    return key;
  }

  // 32 random bits for element `index`; four neighbours share one Philox block.
  TESSERA_ALWAYS_INLINE uint32_t Bits(uint64_t index) const { return Philox4x32(bits_, index / 4, 0)[index % 4]; }
  // [0, 1) in steps of 2^-24, exact in f32.
  TESSERA_ALWAYS_INLINE float Uniform(uint64_t index) const { return static_cast<float>(Bits(index) >> 8) * 0x1p-24f; }
  // Standard normal by Box-Muller from the 64 bits of one block half; f64 inside.
  double Normal(uint64_t index) const;

 private:
  static constexpr uint64_t Mix(uint64_t z) {  // splitmix64
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t bits_;
};

}  // namespace tessera
