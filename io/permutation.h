// SPDX-License-Identifier: Apache-2.0
// A shuffled order of n items that needs no array: position -> item is a formula, so any worker can ask for any part.
//
// A Feistel network over the next even number of bits, walked until it lands below n (M. Luby, C. Rackoff, 1988;
// J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
//
//   Permutation order(dataset.size(), RngKey(seed).With(epoch));
//   order[0], order[1], ...   // each of 0 .. size-1 exactly once
#pragma once

#include <cstdint>

#include "tensor/rng.h"

namespace tessera::io {

class Permutation {
 public:
  Permutation(int64_t size, RngKey key);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t position) const;

 private:
  uint64_t Scramble(uint64_t value) const;

  int64_t size_;
  uint64_t key_;
  int half_bits_ = 1;  // 4^half_bits_ >= size_, and less than 4 times it
};

}  // namespace tessera::io
