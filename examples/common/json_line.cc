// SPDX-License-Identifier: Apache-2.0
#include "examples/common/json_line.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "examples/common/utf8.h"

namespace tessera::examples {

void AppendWhole(std::string* out, int64_t value) {
  char text[24];
  out->append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

void AppendNumber(std::string* out, double value) {
  if (std::isnan(value)) {
    *out += "NaN";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "Infinity" : "-Infinity";
  } else {
    char text[32];
    out->append(text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 9).ptr);
  }
}

std::string NumberText(double value) {
  std::string out;
  AppendNumber(&out, value);
  return out;
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (const char c : ValidUtf8(text)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void JsonLine::Key(std::string_view key) {
  if (text_.back() != '{') text_ += ',';
  text_ += '"';
  text_ += key;
  text_ += "\":";
}

JsonLine& JsonLine::Whole(std::string_view key, int64_t value) {
  Key(key);
  AppendWhole(&text_, value);
  return *this;
}

JsonLine& JsonLine::Number(std::string_view key, double value) {
  Key(key);
  if (std::isfinite(value)) {
    AppendNumber(&text_, value);
    return *this;
  }
  text_ += "null";
  return Text(std::string(key) + "_note", NumberText(value));
}

JsonLine& JsonLine::Flag(std::string_view key, bool value) {
  Key(key);
  text_ += value ? "true" : "false";
  return *this;
}

JsonLine& JsonLine::Text(std::string_view key, std::string_view value) {
  Key(key);
  text_ += JsonText(value);
  return *this;
}

JsonLine& JsonLine::Begin(std::string_view key) {
  Key(key);
  text_ += '{';
  return *this;
}

JsonLine& JsonLine::End() {
  text_ += '}';
  return *this;
}

std::string JsonLine::Take() {
  std::string out(1, '{');
  out.swap(text_);
  return out += "}\n";
}

}  // namespace tessera::examples
