// SPDX-License-Identifier: Apache-2.0
#include "examples/common/format.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "examples/common/utf8.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

std::string Printf(const char* format, double value, int digits = 0) {
  char text[64];
  std::snprintf(text, sizeof text, format, digits, value);
  return text;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

void WrapLine(std::string_view line, int columns, std::vector<std::string>* out) {
  while (Columns(line) > columns) {
    size_t end = 0, last_blank = 0;  // bytes of the first `columns` columns, and of those up to their last blank
    for (int used = 0; used < columns; ++used) {
      if (line[end] == ' ') last_blank = end;
      ++end;
      while (end < line.size() && IsContinuation(line[end])) ++end;
    }
    if (line[end] == ' ') last_blank = end;
    const size_t cut = last_blank > 0 ? last_blank : end;
    out->emplace_back(line.substr(0, line.find_last_not_of(' ', cut - 1) + 1));
    line.remove_prefix(cut);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  out->emplace_back(line);
}

}  // namespace

std::string WithCommas(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Compact(double value) {
  if (!std::isfinite(value)) return "n/a";
  const char* suffix = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (std::abs(value) < 999.5) break;
    value /= 1000;
    suffix = next;
  }
  const int digits = *suffix == '\0' || std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return Str(Printf("%.*f", value, digits), suffix);
}

std::string Duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "n/a";
  const int64_t total = std::llround(seconds);
  char text[64];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                  static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(total / 60),
                  static_cast<long long>(total % 60));
  }
  return text;
}

std::string Bytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* unit = " B";
  for (const char* next : {" kB", " MB", " GB", " TB"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = next;
  }
  return Printf("%.*f", value, unit[1] == 'B' || value >= 99.95 ? 0 : 1).append(unit);
}

std::string Fixed(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Printf(std::abs(value) < 1e6 ? "%.*f" : "%.*g", value, std::abs(value) < 1e6 ? digits : 4);
}

std::string Short(double value) {
  const bool small = value != 0 && std::abs(value) < 1e-3;
  std::string text = small ? Printf("%.*e", value, 1) : Printf("%.*g", value, 2);
  const size_t exponent = text.find('e');
  if (exponent == std::string::npos) return text;
  size_t zeros = exponent + 2;  // "2.9e-04" -> "2.9e-4"
  while (zeros + 1 < text.size() && text[zeros] == '0') text.erase(zeros, 1);
  if (text[exponent + 1] == '+') text.erase(exponent + 1, 1);
  const size_t dot = text.find(".0e");
  return dot == std::string::npos ? text : text.erase(dot, 2);  // "3.0e-4" -> "3e-4"
}

std::string Milliseconds(double milliseconds) {
  if (!std::isfinite(milliseconds)) return "n/a";
  if (milliseconds >= 9999.5) return Fixed(milliseconds / 1000, 1) + " s";
  return Fixed(milliseconds, milliseconds < 9.95 ? 1 : 0) + " ms";
}

int Columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

std::string FitColumns(std::string_view text, int columns) {
  if (columns <= 0 || Columns(text) <= columns) return std::string(text);
  const int kept = std::max(columns - 3, 0);
  size_t end = 0;
  for (int used = 0; used < kept; ++used) {
    ++end;
    while (end < text.size() && IsContinuation(text[end])) ++end;
  }
  return std::string(text.substr(0, end)) + std::string(static_cast<size_t>(columns - kept), '.');
}

std::vector<std::string> Wrap(std::string_view text, int columns) {
  std::vector<std::string> lines;
  while (true) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (columns > 0) {
      WrapLine(line, columns, &lines);
    } else {
      lines.emplace_back(line);
    }
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

std::string Table(std::string_view title, std::span<const Row> rows, int columns) {
  int label_columns = 0;
  for (const Row& row : rows) label_columns = std::max(label_columns, Columns(row.first));
  const int indent = label_columns + 4;
  const int value_columns = columns > 0 ? std::max(columns - indent, 20) : 0;
  std::string out;
  if (!title.empty()) {
    for (const std::string& line : Wrap(title, columns)) out += Str(line, "\n");
  }
  for (const auto& [label, value] : rows) {
    std::string lead = Str("  ", label, std::string(static_cast<size_t>(indent - 2 - Columns(label)), ' '));
    for (const std::string& line : Wrap(value, value_columns)) {
      out += Str(lead, line, "\n");
      lead.assign(static_cast<size_t>(indent), ' ');
    }
  }
  return out;
}

std::string Printable(std::span<const int64_t> bytes) {
  std::string raw;
  for (int64_t byte : bytes) raw += static_cast<char>(byte);
  std::string out;
  for (size_t i = 0; i < raw.size();) {
    const size_t length = Utf8Length(std::string_view(raw).substr(i));
    const unsigned char c = static_cast<unsigned char>(raw[i]);
    if (c == '\n' || c == 0) {
      out += '\n';
    } else if (c == '\t') {
      out += ' ';
    } else if (length == 0 || c < 0x20 || c == 0x7F) {
      out += '?';
    } else {
      out.append(raw, i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return out;
}

std::string ShellQuoted(std::string_view text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./,:@%+=").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace tessera::examples
