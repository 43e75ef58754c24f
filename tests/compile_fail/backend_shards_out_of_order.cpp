// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend of the user that shards gradients and not the optimizer state.
// expect: accel: a backend that shards needs to do it in the order of the ZeRO stages;
// expect: use optimizer state, then gradients, then parameters or groups

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
constexpr bool state = true;
#else
constexpr bool state = false;
#endif

struct exchange {
  using axis = accel::backend_axis;
  static constexpr std::string_view name = "exchange";
  static constexpr bool distributed = true;
  static constexpr bool shards_optimizer_state = state;
  static constexpr bool shards_gradients = true;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = false;
};

accel::Accelerator<exchange> accelerator;
