// SPDX-License-Identifier: Apache-2.0
// Which JSON values are legal for a type of the table of keys, in words and as a test.
//
//   if (!Matches(key.type, value)) problem(Str("got ", value, ", expected ", Expected(key.type)));
#pragma once

#include <optional>
#include <string_view>

#include "zero/config.h"
#include "zero/config_keys.h"
#include "zero/json_reader.h"

namespace tessera::zero {

std::string_view Expected(ValueType type);
bool Matches(ValueType type, const JsonValue& value);

// Whether `value` is one of the alternatives in ConfigKey::legal.
bool IsLegal(std::string_view legal, const JsonValue& value);

std::optional<DType> DTypeFrom(const JsonValue& value);
std::optional<Reducer> ReducerFrom(const JsonValue& value);
std::string_view DTypeName(DType dtype);  // "fp32": as a config writes it
std::string_view ReducerName(Reducer reducer);

}  // namespace tessera::zero
