// SPDX-License-Identifier: Apache-2.0
// Every key that a config may hold, as data: what works, what is accepted without effect, and what is refused, with one
// sentence each. A key that is not here is unknown.
//
//   const ConfigKey* key = FindConfigKey("zero_optimization.stage");
//   for (const ConfigKey& key : ConfigKeys()) std::cout << key.path << ": " << key.sentence << '\n';
//
// To add a key that works: a row here, a line in config.cc that sets the field, and a test that sees its effect.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::zero {

enum class KeyKind : uint8_t {
  kWorks,     // sets a field
  kBlock,     // an object whose members are rows of their own
  kNoEffect,  // accepted with any value of its type; the sentence, saying why, becomes a notice
  kOneValue,  // accepted like that with a value of `legal`; another one would ask for what the sentence says is not done
  kRefused,   // a feature that is not here; a value of `legal`, or a block so switched off, asks for nothing
  kAlias,     // another spelling of the key that the sentence names
};

enum class ValueType : uint8_t {
  kAny,
  kBoolean,
  kPositive,     // a whole number >= 1
  kCount,        // a whole number >= 0
  kInteger,      // a whole number
  kNumber,       // any number
  kNonNegative,  // a number >= 0
  kAboveZero,    // a number > 0
  kText,
  kObject,
  kStage,       // 0 to 3, or true for 1
  kScalePower,  // a whole number whose power of two is an f32
  kDType,       // "fp32", "fp16", "bf16"
  kDTypeOrF64,
  kReducer,
};

struct ConfigKey {
  std::string_view path;  // with dots between blocks
  ValueType type;
  KeyKind kind;
  std::string_view legal;  // alternatives with '|' between them; of a block "member=value"
  std::string_view sentence;
};

std::span<const ConfigKey> ConfigKeys();
const ConfigKey* FindConfigKey(std::string_view path);  // null: unknown

// Whether integrations of DeepSpeed compute a value for "auto" here; nothing in this library does.
bool IsAutoElsewhere(std::string_view path);

// " did you mean 'stage'?" for an unknown `name` in `block` ("" is the top), or "".
std::string SuggestKey(std::string_view block, std::string_view name);

}  // namespace tessera::zero
