// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A precision of the user with a loss scaler where nothing overflows.
// expect: accel: a loss scaler needs float16 computation on float32 parameters;
// expect: use needs_scaler = false

#include "support/accelerator_head.hpp"

using accel::element_type;

#ifndef ACCEL_BAD
constexpr element_type computation = element_type::float16;
#else
constexpr element_type computation = element_type::bfloat16;
#endif

struct mixed {
  using axis = accel::precision_axis;
  static constexpr std::string_view name = "mixed";
  static constexpr element_type parameter_type = element_type::float32;
  static constexpr element_type compute_type = computation;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = true;
  static constexpr bool master_weights = false;
};

accel::Accelerator<accel::single, mixed> accelerator;
