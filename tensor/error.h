// SPDX-License-Identifier: Apache-2.0
// Errors for misuse of the tensor, autograd and nn interfaces.
//
// One exception type, one line per error: which op or parameter, what came, what is legal. While a module runs, its path
// is put in front, so an error deep inside a model reads "gpt.blocks.3.attn: linear: x has 31 features, weight wants 32".
//
//   if (x.rank() != 2) throw Error(Str("linear: x must have rank 2, got shape ", x.shape()));
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message);  // puts the innermost ErrorScope's path in front
};

// Names the place that errors thrown on this thread are attributed to. Borrowed path: it must outlive the scope.
class ErrorScope {
 public:
  explicit ErrorScope(const std::string* path);
  ~ErrorScope();
  ErrorScope(const ErrorScope&) = delete;
  ErrorScope& operator=(const ErrorScope&) = delete;

 private:
  const std::string* previous_;
};

namespace internal {
void AppendTo(std::string& out, std::string_view piece);
void AppendTo(std::string& out, int64_t value);
void AppendTo(std::string& out, uint64_t value);
void AppendTo(std::string& out, double value);

template <class T>
void AppendPiece(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    AppendTo(out, std::string_view(value ? "true" : "false"));
  } else if constexpr (std::is_floating_point_v<T>) {
    AppendTo(out, static_cast<double>(value));
  } else if constexpr (std::is_unsigned_v<T>) {
    AppendTo(out, static_cast<uint64_t>(value));
  } else if constexpr (std::is_integral_v<T>) {
    AppendTo(out, static_cast<int64_t>(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    AppendTo(out, std::string_view(value));
  } else {
    AppendTo(out, std::string_view(value.ToString()));
  }
}
}  // namespace internal

// Joins its arguments into one string: text, numbers, and anything with a ToString().
template <class... Pieces>
std::string Str(const Pieces&... pieces) {
  std::string out;
  (internal::AppendPiece(out, pieces), ...);
  return out;
}

}  // namespace tessera
