// SPDX-License-Identifier: Apache-2.0
#include "examples/common/utf8.h"

namespace tessera::examples {

size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80   ? 1
                        : byte(0) < 0xC2 ? 0
                        : byte(0) < 0xE0 ? 2
                        : byte(0) < 0xF0 ? 3
                        : byte(0) < 0xF5 ? 4
                                         : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (length < 2) return length;
  const unsigned char second = byte(1);
  if (length == 2) return second >= 0xA0 || byte(0) != 0xC2 ? 2 : 0;  // U+0080..9F are control characters
  const bool legal = !(byte(0) == 0xE0 && second < 0xA0) && !(byte(0) == 0xED && second >= 0xA0) &&
                     !(byte(0) == 0xF0 && second < 0x90) && !(byte(0) == 0xF4 && second >= 0x90);
  return legal ? length : 0;
}

std::string ValidUtf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace tessera::examples
