// SPDX-License-Identifier: Apache-2.0
// Element types. A dtype is a value, not a template parameter: kernels switch on it once, at their edge.
//
//   ItemSize(DType::kBF16) == 2;  DTypeOf<float>() == DType::kF32;
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/half.h"

namespace tessera {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8 };

constexpr int64_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}
constexpr bool IsLowPrecision(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// The type that sums and statistics of this dtype are kept in: f64 for f64, f32 for the other floating types.
constexpr DType AccumulationType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

template <class T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<BFloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType DTypeOf<Float16>() {
  return DType::kF16;
}
template <>
constexpr DType DTypeOf<double>() {
  return DType::kF64;
}
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}

}  // namespace tessera
