// SPDX-License-Identifier: Apache-2.0
#include "tensor/error.h"

#include <cstdio>

namespace tessera {
namespace {

thread_local const std::string* current_path = nullptr;

std::string WithPath(std::string_view message) {
  std::string out;
  if (current_path != nullptr && !current_path->empty()) {
    out.append(*current_path).append(": ");
  }
  out.append(message);
  return out;
}

}  // namespace

Error::Error(std::string_view message) : std::runtime_error(WithPath(message)) {}

ErrorScope::ErrorScope(const std::string* path) : previous_(current_path) { current_path = path; }
ErrorScope::~ErrorScope() { current_path = previous_; }

namespace internal {

void AppendTo(std::string& out, std::string_view piece) { out.append(piece); }
void AppendTo(std::string& out, int64_t value) { out.append(std::to_string(value)); }
void AppendTo(std::string& out, uint64_t value) { out.append(std::to_string(value)); }
void AppendTo(std::string& out, double value) {
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%.9g", value);
  out.append(text, static_cast<size_t>(length));
}

}  // namespace internal
}  // namespace tessera
