// SPDX-License-Identifier: Apache-2.0
#include "examples/common/html.h"

#include "examples/common/utf8.h"

namespace tessera::examples {

std::string HtmlEscaped(std::string_view text) {
  std::string out;
  for (const char c : ValidUtf8(text)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tessera::examples
