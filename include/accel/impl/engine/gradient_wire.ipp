// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/gradient_wire.hpp>

namespace accel {

std::string_view name_of(CommHook hook) {
  switch (hook) {
    case CommHook::fp16_compress: return "fp16_compress";
    case CommHook::bf16_compress: return "bf16_compress";
    case CommHook::power_sgd: return "power_sgd";
    default: return "none";
  }
}

c10::ScalarType GradientWire::type_for(c10::ScalarType type) const {
  const bool wide = type == c10::ScalarType::Float || type == c10::ScalarType::Double;
  if (hook == CommHook::fp16_compress && wide) return c10::ScalarType::Half;
  if (hook == CommHook::bf16_compress && wide) return c10::ScalarType::BFloat16;
  return type == parameter_type ? reduce_type : type;
}

}  // namespace accel
