// SPDX-License-Identifier: Apache-2.0
// Numbers and text as a person reads them. Pure functions.
//
//   WithCommas(4096) -> "4,096"; Compact(41234) -> "41.2k"; Duration(108) -> "1:48"; Short(2.9e-4) -> "2.9e-4"
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::examples {

std::string WithCommas(int64_t value);
std::string Compact(double value);     // three digits and k, M or G
std::string Duration(double seconds);  // "0:07", "1:48", "2:03:10"
std::string Bytes(int64_t bytes);      // "5.2 MB", powers of 1000
std::string Fixed(double value, int digits);
std::string Short(double value);  // two digits: "2.9e-4", "0.001", "3"
std::string Milliseconds(double milliseconds);

// What a terminal shows: one column for each UTF-8 character.
int Columns(std::string_view text);
std::string FitColumns(std::string_view text, int columns);  // cut with "..." if it is longer; columns 0: never
// Lines of at most `columns`, broken at blanks (inside a word only when it is longer than a line). Keeps line breaks.
std::vector<std::string> Wrap(std::string_view text, int columns);

// A label and its value on each line; long values go on below their first column. Ends with a line break.
using Row = std::pair<std::string, std::string>;
std::string Table(std::string_view title, std::span<const Row> rows, int columns);

// Bytes that a model made up, safe to print: control characters and broken UTF-8 become '?', a document's end a line.
std::string Printable(std::span<const int64_t> bytes);

// As one word of a POSIX shell.
std::string ShellQuoted(std::string_view text);

}  // namespace tessera::examples
