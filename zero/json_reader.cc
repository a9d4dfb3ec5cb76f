// SPDX-License-Identifier: Apache-2.0
#include "zero/json_reader.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "tensor/error.h"

namespace tessera::zero {
namespace {

constexpr size_t kMaxDepth = 64;  // a tree of values is destroyed by recursion

// Walks over the text and counts its lines on the way: the parser tells what it found, but not where.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int64_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int64_t* line_;
};

std::optional<int64_t> WholeOf(double number) {
  if (std::floor(number) != number || number < -0x1p63 || number >= 0x1p63) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Builds the tree from the parser's calls; the names are the parser's.
class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, std::string_view name, const int64_t* line, JsonDocument* document)
      : text_(text), name_(name), line_(line), document_(document) {}

  bool null() { return Add({.kind = JsonValue::Kind::kNull}); }
  bool boolean(bool value) { return Add({.kind = JsonValue::Kind::kBoolean, .boolean = value}); }
  bool number_integer(int64_t value) { return AddNumber(static_cast<double>(value), value, std::to_string(value)); }
  bool number_unsigned(uint64_t value) {
    const bool fits = value <= static_cast<uint64_t>(INT64_MAX);
    return AddNumber(static_cast<double>(value), fits ? std::optional(static_cast<int64_t>(value)) : std::nullopt,
                     std::to_string(value));
  }
  bool number_float(double value, const std::string& written) { return AddNumber(value, WholeOf(value), written); }
  bool string(std::string& value) { return Add({.kind = JsonValue::Kind::kText, .text = std::move(value)}); }
  template <class Bytes>
  bool binary(const Bytes&) {
    return false;  // JSON text has none
  }
  bool start_object(size_t) { return Open(JsonValue::Kind::kObject); }
  bool start_array(size_t) { return Open(JsonValue::Kind::kList); }
  bool end_object() {
    RemoveDuplicates(open_.back());
    return Close();
  }
  bool end_array() { return Close(); }
  bool key(const std::string& name) {
    open_.back()->members.push_back({.name = name, .line = *line_});
    return true;
  }

  bool parse_error(size_t position, const std::string& /*last_token*/, const nlohmann::detail::exception& error) {
    // The text after "[json.exception.parse_error.101] parse error at line 1, column 2: ".
    std::string what = error.what();
    if (const size_t id = what.find("] "); id != std::string::npos) what.erase(0, id + 2);
    const bool in_list = !open_.empty() && open_.back()->kind == JsonValue::Kind::kList;
    const auto says = [&what](const char* part) { return what.find(part) != std::string::npos; };
    if ((says("unexpected '}'") && says("object key")) ||
        (says("unexpected ']'") && says("parsing value") && in_list)) {
      return Fail(position, Str("trailing comma before '", in_list ? "]" : "}", "'; JSON has none, remove it"));
    }
    if (what.starts_with("parse error at ")) what.erase(0, std::min(what.find(": ") + 2, what.size()));
    if (what.starts_with("syntax error ")) what.erase(0, 13);
    return Fail(position, what);
  }
  std::string TakeError() { return std::move(error_); }

 private:
  bool Fail(size_t position, std::string_view what) {
    const std::string_view before = text_.substr(0, std::min(position == 0 ? 0 : position - 1, text_.size()));
    const int64_t line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = before.size() - (line == 1 ? 0 : before.rfind('\n') + 1) + 1;
    error_ = Str(name_, ":", line, ":", column, ": JSON syntax error: ", what);
    return false;
  }

  // Where the next value goes. Pointers to open values stay valid: only the innermost one gets new members or items.
  JsonValue* Place(JsonValue value) {
    if (open_.empty()) {
      document_->root = std::move(value);
      return &document_->root;
    }
    JsonValue& parent = *open_.back();
    if (parent.kind == JsonValue::Kind::kObject) {
      parent.members.back().value = std::move(value);
      return &parent.members.back().value;
    }
    parent.items.push_back(std::move(value));
    return &parent.items.back();
  }
  bool Add(JsonValue value) {
    Place(std::move(value));
    return true;
  }
  bool AddNumber(double value, std::optional<int64_t> whole, std::string written) {
    return Add({.kind = JsonValue::Kind::kNumber, .number = value, .whole = whole, .text = std::move(written)});
  }
  bool Open(JsonValue::Kind kind) {
    if (open_.size() == kMaxDepth) {
      error_ = Str(name_, ":", *line_, ": more than ", kMaxDepth, " objects or lists inside each other");
      return false;
    }
    open_.push_back(Place({.kind = kind}));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  // "zero_optimization." for the members of that block. A list has no name: "list." stands for each of its items.
  std::string PathOfOpen() const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i]->kind == JsonValue::Kind::kObject) path += Printable(open_[i]->members.back().name) + ".";
    }
    return path;
  }
  void RemoveDuplicates(JsonValue* object) {
    std::vector<JsonMember>& members = object->members;
    std::vector<size_t> order(members.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return members[a].name < members[b].name; });
    std::vector<bool> again(members.size());
    for (size_t i = 1, first = 0; i < order.size(); ++i) {
      if (members[order[i]].name != members[order[first]].name) {
        first = i;
        continue;
      }
      again[order[i]] = true;
      const JsonMember& member = members[order[i]];
      document_->duplicates.push_back({member.line, Str("duplicate key '", PathOfOpen(), Printable(member.name),
                                                        "', first at line ", members[order[first]].line)});
    }
    size_t kept = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      if (again[i]) continue;
      if (kept != i) members[kept] = std::move(members[i]);
      ++kept;
    }
    members.resize(kept);
  }

  std::string_view text_, name_;
  const int64_t* line_;
  JsonDocument* document_;
  std::vector<JsonValue*> open_;
  std::string error_;
};

}  // namespace

const JsonValue* JsonValue::Find(std::string_view name) const {
  for (const JsonMember& member : members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

std::string JsonValue::ToString() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return boolean ? "true" : "false";
    case Kind::kNumber:
      return Printable(text);
    case Kind::kText:
      return Str("\"", Printable(text), "\"");
    case Kind::kList:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "?";
}

absl::StatusOr<JsonDocument> ReadJson(std::string_view text, std::string_view name) {
  JsonDocument document;
  int64_t line = 1;
  TreeBuilder builder(text, name, &line, &document);
  const CountingIterator begin(text.data(), &line), end(text.data() + text.size(), &line);
  const bool strict = true, ignore_comments = true;
  if (!nlohmann::json::sax_parse(begin, end, &builder, nlohmann::json::input_format_t::json, strict, ignore_comments)) {
    return absl::InvalidArgumentError(builder.TakeError());
  }
  return document;
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string_view shown = text.substr(0, max_bytes);
  if (shown.size() < text.size()) {  // not within a UTF-8 character
    while (!shown.empty() && (text[shown.size()] & 0xc0) == 0x80) shown.remove_suffix(1);
  }
  std::string out;
  for (const char c : shown) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      out += c;
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      out += {'\\', 'x', kDigits[(c >> 4) & 15], kDigits[c & 15]};
    }
  }
  return shown.size() < text.size() ? out + "..." : out;
}

}  // namespace tessera::zero
