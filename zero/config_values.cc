// SPDX-License-Identifier: Apache-2.0
#include "zero/config_values.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tessera::zero {
namespace {

using Kind = JsonValue::Kind;

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"fp32", DType::kF32}, {"fp16", DType::kF16}, {"bf16", DType::kBF16}, {"fp64", DType::kF64}};
constexpr std::pair<std::string_view, Reducer> kReducers[] = {{"fast", Reducer::kFast},
                                                              {"canonical", Reducer::kCanonical}};
constexpr int64_t kLargestScalePower = 127;  // 2^128 is no f32

template <class T, size_t N>
std::optional<T> Named(const std::pair<std::string_view, T> (&names)[N], const JsonValue& value) {
  for (const auto& [name, result] : names) {
    if (value.kind == Kind::kText && value.text == name) return result;
  }
  return std::nullopt;
}

template <class T, size_t N>
std::string_view NameIn(const std::pair<std::string_view, T> (&names)[N], T value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "?";
}

bool IsSpelled(const JsonValue& value, std::string_view spelling) {
  switch (value.kind) {
    case Kind::kBoolean:
      return spelling == (value.boolean ? "true" : "false");
    case Kind::kNumber:
      return value.whole.has_value() && spelling == std::to_string(*value.whole);
    case Kind::kText:
      return spelling == value.text;
    default:
      return false;
  }
}

}  // namespace

std::optional<DType> DTypeFrom(const JsonValue& value) { return Named(kDTypes, value); }
std::optional<Reducer> ReducerFrom(const JsonValue& value) { return Named(kReducers, value); }
std::string_view DTypeName(DType dtype) { return NameIn(kDTypes, dtype); }
std::string_view ReducerName(Reducer reducer) { return NameIn(kReducers, reducer); }

std::string_view Expected(ValueType type) {
  switch (type) {
    case ValueType::kBoolean:
      return "true or false";
    case ValueType::kPositive:
      return "a whole number from 1 to 2^63 - 1";
    case ValueType::kCount:
      return "a whole number from 0 to 2^63 - 1";
    case ValueType::kInteger:
      return "a whole number";
    case ValueType::kNumber:
      return "a number";
    case ValueType::kNonNegative:
      return "a number >= 0";
    case ValueType::kAboveZero:
      return "a number > 0";
    case ValueType::kText:
      return "a text";
    case ValueType::kObject:
      return "an object";
    case ValueType::kStage:
      return "a stage from 0 to 3";
    case ValueType::kScalePower:
      return "a whole number from 0 to 127";
    case ValueType::kDType:
      return "\"fp32\", \"fp16\" or \"bf16\"";
    case ValueType::kDTypeOrF64:
      return "\"fp32\", \"fp16\", \"bf16\" or \"fp64\"";
    case ValueType::kReducer:
      return "\"fast\" or \"canonical\"";
    case ValueType::kAny:
      break;
  }
  return "a value";
}

bool Matches(ValueType type, const JsonValue& value) {
  const bool is_number = value.kind == Kind::kNumber;
  const auto whole_in = [&](int64_t low, int64_t high) {
    return is_number && value.whole.has_value() && *value.whole >= low && *value.whole <= high;
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  switch (type) {
    case ValueType::kBoolean:
      return value.kind == Kind::kBoolean;
    case ValueType::kPositive:
      return whole_in(1, kMax);
    case ValueType::kCount:
      return whole_in(0, kMax);
    case ValueType::kInteger:
      return whole_in(std::numeric_limits<int64_t>::min(), kMax);
    case ValueType::kNumber:
      return is_number;
    case ValueType::kNonNegative:
      return is_number && value.number >= 0;
    case ValueType::kAboveZero:
      return is_number && value.number > 0;
    case ValueType::kText:
      return value.kind == Kind::kText;
    case ValueType::kObject:
      return value.kind == Kind::kObject;
    case ValueType::kStage:
      return whole_in(0, 3) || (value.kind == Kind::kBoolean && value.boolean);
    case ValueType::kScalePower:
      return whole_in(0, kLargestScalePower);
    case ValueType::kDType:
      return DTypeFrom(value).has_value() && value.text != "fp64";
    case ValueType::kDTypeOrF64:
      return DTypeFrom(value).has_value();
    case ValueType::kReducer:
      return ReducerFrom(value).has_value();
    case ValueType::kAny:
      return true;
  }
  return false;
}

bool IsLegal(std::string_view legal, const JsonValue& value) {
  if (const size_t equals = legal.find('='); equals != std::string_view::npos && value.kind == Kind::kObject) {
    const JsonValue* member = value.Find(legal.substr(0, equals));
    return member == nullptr || IsSpelled(*member, legal.substr(equals + 1));
  }
  while (!legal.empty()) {
    const size_t bar = std::min(legal.find('|'), legal.size());
    if (IsSpelled(value, legal.substr(0, bar))) return true;
    legal.remove_prefix(std::min(bar + 1, legal.size()));
  }
  return false;
}

}  // namespace tessera::zero
