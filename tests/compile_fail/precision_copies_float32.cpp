// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A precision of the user with fp32 copies of fp32 parameters.
// expect: accel: master weights need 16-bit parameters;
// expect: use master_weights = false

#include "support/accelerator_head.hpp"

using accel::element_type;

#ifndef ACCEL_BAD
constexpr bool masters = false;
#else
constexpr bool masters = true;
#endif

struct mixed {
  using axis = accel::precision_axis;
  static constexpr std::string_view name = "mixed";
  static constexpr element_type parameter_type = element_type::float32;
  static constexpr element_type compute_type = element_type::float32;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = masters;
};

accel::Accelerator<accel::single, mixed> accelerator;
