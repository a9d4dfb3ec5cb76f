// SPDX-License-Identifier: Apache-2.0
// Text from anywhere as text of an HTML page, never as markup.
#pragma once

#include <string>
#include <string_view>

namespace tessera::examples {

// For contents and for quoted attributes. What is no UTF-8 and control characters but tab and line break become U+FFFD.
std::string HtmlEscaped(std::string_view text);

}  // namespace tessera::examples
