// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A precision of the user that computes in 16 bit on parameters that autocast leaves alone.
// expect: accel: autocast needs float32 parameters and a 16-bit compute type;
// expect: use compute_type = parameter_type

#include "support/accelerator_head.hpp"

using accel::element_type;

#ifndef ACCEL_BAD
constexpr element_type parameters = element_type::float32;
#else
constexpr element_type parameters = element_type::float64;
#endif

struct mixed {
  using axis = accel::precision_axis;
  static constexpr std::string_view name = "mixed";
  static constexpr element_type parameter_type = parameters;
  static constexpr element_type compute_type = element_type::bfloat16;
  static constexpr element_type reduce_type = element_type::float32;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = false;
};

accel::Accelerator<accel::single, mixed> accelerator;
