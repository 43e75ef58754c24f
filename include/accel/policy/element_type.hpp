// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The number types that a precision policy speaks of. An enum of our own, because policies include
// nothing of LibTorch; the engines translate it to at::ScalarType.
#pragma once

#include <string_view>

namespace accel {

enum class element_type { float64, float32, bfloat16, float16 };

/// The enumerator's own name.
constexpr std::string_view name_of(element_type type) {
  switch (type) {
    case element_type::float64: return "float64";
    case element_type::float32: return "float32";
    case element_type::bfloat16: return "bfloat16";
    case element_type::float16: return "float16";
  }
  return "unknown";
}

/// Takes two bytes: bfloat16 and float16.
constexpr bool is_16_bit(element_type type) {
  return type == element_type::bfloat16 || type == element_type::float16;
}

}  // namespace accel
