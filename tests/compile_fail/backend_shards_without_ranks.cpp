// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend of the user that shards and has nobody to share with.
// expect: accel: a backend that shards needs ranks;
// expect: use distributed = true

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
constexpr bool ranks = true;
#else
constexpr bool ranks = false;
#endif

struct exchange {
  using axis = accel::backend_axis;
  static constexpr std::string_view name = "exchange";
  static constexpr bool distributed = ranks;
  static constexpr bool shards_optimizer_state = true;
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = false;
};

accel::Accelerator<exchange> accelerator;
