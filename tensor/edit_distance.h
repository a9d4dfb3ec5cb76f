// SPDX-License-Identifier: Apache-2.0
// Levenshtein distance, for errors that ask "did you mean".
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// How many characters must be inserted, removed or replaced to make `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace tessera
