// SPDX-License-Identifier: Apache-2.0
#include "io/permutation.h"

#include "tensor/error.h"

namespace tessera::io {
namespace {

constexpr uint64_t kRounds = 6;

}  // namespace

Permutation::Permutation(int64_t size, RngKey key) : size_(size), key_(key.bits()) {
  if (size < 0) throw Error(Str("permutation: size is ", size, ", expected 0 or more"));
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  if (size > int64_t{1} << (2 * half_bits_)) throw Error(Str("permutation: size ", size, " is above 2^62"));
}

int64_t Permutation::operator[](int64_t position) const {
  if (position < 0 || position >= size_) {
    throw Error(Str("permutation: position ", position, " is outside 0..", size_ - 1));
  }
  uint64_t value = static_cast<uint64_t>(position);
  do {
    value = Scramble(value);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

// A bijection of 2 * half_bits_ bits, whatever the round function is: each round can be undone.
uint64_t Permutation::Scramble(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = Philox4x32(key_, right, round)[0];
    const uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

}  // namespace tessera::io
