// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace accel::detail {

/// The time of a record, as files and their readers in other languages write it.
inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace accel::detail
