// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// For test programs that are one rank of several processes.
#pragma once

#include <accel/comm/partial_state.hpp>

namespace accel::test {

/// The ranks meet once in a process.
inline const PartialState& processes() {
  static const PartialState state(device_kind::cpu);
  return state;
}

}  // namespace accel::test
