// SPDX-License-Identifier: Apache-2.0
// The "params" object of an optimizer or schedule as a config gives it, without any config format, and the reader that
// turns it into typed options. Every error is one line: whose parameter, what came, what is legal.
//
//   Params params = {{"lr", 3e-4}, {"betas", {0.9, 0.95}}, {"adam_w_mode", true}};
//   ParamReader reader("AdamW", params);
//   options.lr = reader.Number("lr", options.lr);
//   reader.RefuseUnknown();
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::optim {

class ParamValue {
 public:
  ParamValue(bool value) : value_(value) {}  // NOLINT: implicit on purpose, here and below
  template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) ParamValue(T value)
      : value_(static_cast<double>(value)) {}                                              // NOLINT
  ParamValue(const char* value) : value_(std::string(value)) {}                            // NOLINT
  ParamValue(std::string value) : value_(std::move(value)) {}                              // NOLINT
  ParamValue(std::vector<double> value) : value_(std::move(value)) {}                      // NOLINT
  ParamValue(std::initializer_list<double> value) : value_(std::vector<double>(value)) {}  // NOLINT

  const std::variant<bool, double, std::string, std::vector<double>>& get() const { return value_; }
  std::string ToString() const;

 private:
  std::variant<bool, double, std::string, std::vector<double>> value_;
};

using Params = std::map<std::string, ParamValue, std::less<>>;

class ParamReader {
 public:
  // Borrows both.
  ParamReader(std::string_view owner, const Params& params) : owner_(owner), params_(params) {}

  // Each returns `fallback` when the parameter is absent, and throws Error when it is of another kind.
  double Number(std::string_view name, double fallback);
  int64_t Integer(std::string_view name, int64_t fallback);
  bool Flag(std::string_view name, bool fallback);
  std::string Text(std::string_view name, std::string_view fallback);
  std::pair<double, double> Pair(std::string_view name, std::pair<double, double> fallback);
  bool Has(std::string_view name) const { return params_.find(name) != params_.end(); }
  void Require(std::string_view name) const;

  // Throws Error for a parameter that nobody has asked for above; lists those that were.
  void RefuseUnknown() const;

 private:
  const ParamValue* Find(std::string_view name);
  [[noreturn]] void ThrowKind(std::string_view name, const ParamValue& value, const char* expected) const;

  std::string_view owner_;
  const Params& params_;
  std::vector<std::string_view> known_;
};

// Throws Error unless low <= value <= high (`below`: value < high); NaN never is. An infinite high asks for finite.
void CheckInRange(std::string_view owner, std::string_view name, double value, double low, double high,
                  bool below = false);

bool EqualIgnoringCase(std::string_view a, std::string_view b);

}  // namespace tessera::optim
