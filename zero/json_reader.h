// SPDX-License-Identifier: Apache-2.0
// JSON as a tree that remembers on which line each key stands, so that errors about values can say where.
//
//   absl::StatusOr<JsonDocument> document = ReadJson("{\"stage\": 2}  // ZeRO", "ds_config.json");
//   document->root.members[0].name, document->root.members[0].line, document->root.members[0].value.whole;
//
// Comments (// and /* */) are accepted. Not JSON, and refused: trailing commas, NaN, hexadecimal, single quotes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::zero {

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t { kNull, kBoolean, kNumber, kText, kList, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::optional<int64_t> whole = {};  // a number's exact value, if it is whole and fits; 5e8 is whole
  std::string text;                   // of a text; of a number how it was written
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;  // in the file's order, each name once

  const JsonValue* Find(std::string_view name) const;  // a member's value, or null
  std::string ToString() const;                        // for errors: one short line
};

struct JsonMember {
  std::string name;
  int64_t line = 0;  // of the name
  JsonValue value;
};

struct JsonProblem {
  int64_t line = 0;
  std::string message;
};

struct JsonDocument {
  JsonValue root;
  std::vector<JsonProblem> duplicates;  // of a name that came twice the first value is kept, and told here
};

// A syntax error's message: "ds_config.json:3:14: JSON syntax error ...".
absl::StatusOr<JsonDocument> ReadJson(std::string_view text, std::string_view name);

// `text` on one line and not endless: control characters as \xNN, the rest after `max_bytes` as "...".
std::string Printable(std::string_view text, size_t max_bytes = 60);

}  // namespace tessera::zero
