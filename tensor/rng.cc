// SPDX-License-Identifier: Apache-2.0
#include "tensor/rng.h"

#include <cmath>

namespace tessera {

double RngKey::Normal(uint64_t index) const {
  // Elements 2i and 2i+1 are the cosine and the sine of one draw.
  const PhiloxBlock block = Philox4x32(bits_, index / 2, 1);
  const double u = (static_cast<double>(block[0]) + 1.0) * 0x1p-32;  // (0, 1]
  const double v = static_cast<double>(block[1]) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 6.283185307179586476925286766559 * v;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace tessera
