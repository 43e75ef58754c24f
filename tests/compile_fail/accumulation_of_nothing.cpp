// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An accumulation of the user whose window is empty.
// expect: accel: an accumulation needs steps >= 1 if static, steps = 0 if not;
// expect: use accumulate<N> or accumulate<dynamic>

#include "support/accelerator_head.hpp"

#include <cstdint>

#ifndef ACCEL_BAD
constexpr std::int64_t length = 8;
#else
constexpr std::int64_t length = 0;
#endif

struct time_window {
  using axis = accel::accumulation_axis;
  static constexpr std::string_view name = "time_window";
  static constexpr bool is_static = true;
  static constexpr std::int64_t steps = length;
};

accel::Accelerator<accel::single, accel::fp32, time_window> accelerator;
