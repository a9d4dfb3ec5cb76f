// SPDX-License-Identifier: Apache-2.0
#include "optim/params.h"

#include <algorithm>
#include <cmath>

#include "tensor/error.h"

namespace tessera::optim {

std::string ParamValue::ToString() const {
  if (const bool* flag = std::get_if<bool>(&value_)) return *flag ? "true" : "false";
  if (const double* number = std::get_if<double>(&value_)) return Str(*number);
  if (const std::string* text = std::get_if<std::string>(&value_)) return Str("\"", *text, "\"");
  std::string out = "[";
  for (const double x : std::get<std::vector<double>>(value_)) out += Str(out.size() > 1 ? ", " : "", x);
  return out + "]";
}

const ParamValue* ParamReader::Find(std::string_view name) {
  known_.push_back(name);
  const auto found = params_.find(name);
  return found == params_.end() ? nullptr : &found->second;
}

void ParamReader::ThrowKind(std::string_view name, const ParamValue& value, const char* expected) const {
  throw Error(Str(owner_, ": ", name, " is ", value, ", expected ", expected));
}

double ParamReader::Number(std::string_view name, double fallback) {
  const ParamValue* value = Find(name);
  if (value == nullptr) return fallback;
  if (const double* number = std::get_if<double>(&value->get())) return *number;
  ThrowKind(name, *value, "a number");
}

int64_t ParamReader::Integer(std::string_view name, int64_t fallback) {
  const ParamValue* value = Find(name);
  if (value == nullptr) return fallback;
  const double* number = std::get_if<double>(&value->get());
  if (number == nullptr || std::floor(*number) != *number || std::abs(*number) > 0x1p53) {
    ThrowKind(name, *value, "an integer");
  }
  return static_cast<int64_t>(*number);
}

bool ParamReader::Flag(std::string_view name, bool fallback) {
  const ParamValue* value = Find(name);
  if (value == nullptr) return fallback;
  if (const bool* flag = std::get_if<bool>(&value->get())) return *flag;
  ThrowKind(name, *value, "true or false");
}

std::string ParamReader::Text(std::string_view name, std::string_view fallback) {
  const ParamValue* value = Find(name);
  if (value == nullptr) return std::string(fallback);
  if (const std::string* text = std::get_if<std::string>(&value->get())) return *text;
  ThrowKind(name, *value, "a text");
}

std::pair<double, double> ParamReader::Pair(std::string_view name, std::pair<double, double> fallback) {
  const ParamValue* value = Find(name);
  if (value == nullptr) return fallback;
  const std::vector<double>* list = std::get_if<std::vector<double>>(&value->get());
  if (list == nullptr || list->size() != 2) ThrowKind(name, *value, "a list of two numbers");
  return {(*list)[0], (*list)[1]};
}

void ParamReader::Require(std::string_view name) const {
  if (!Has(name)) throw Error(Str(owner_, ": parameter ", name, " is required and absent"));
}

void ParamReader::RefuseUnknown() const {
  for (const auto& [name, value] : params_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string legal;
    for (const std::string_view known : known_) legal += Str(legal.empty() ? "" : ", ", known);
    throw Error(Str(owner_, ": unknown parameter ", name, " (", value, "); known: ", legal));
  }
}

void CheckInRange(std::string_view owner, std::string_view name, double value, double low, double high, bool below) {
  if (std::isfinite(value) && value >= low && (below ? value < high : value <= high)) return;
  if (std::isinf(high)) throw Error(Str(owner, ": ", name, " is ", value, ", expected a finite number >= ", low));
  throw Error(Str(owner, ": ", name, " is ", value, ", expected a number in [", low, ", ", high, below ? ")" : "]"));
}

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace tessera::optim
