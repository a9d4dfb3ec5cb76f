// SPDX-License-Identifier: Apache-2.0
// Bytes that may be anything, such as what a model wrote, as legal UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::examples {

// How many bytes of a legal UTF-8 character begin the text (not empty); 0 if none does, or a control character above
// U+007F.
size_t Utf8Length(std::string_view text);

// What is not legal becomes U+FFFD.
std::string ValidUtf8(std::string_view text);

}  // namespace tessera::examples
