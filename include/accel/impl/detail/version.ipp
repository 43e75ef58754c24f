// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/detail/version.hpp>

#define ACCEL_TEXT_(x) #x
#define ACCEL_TEXT(x) ACCEL_TEXT_(x)

namespace accel {

const char* version() noexcept {
  return ACCEL_TEXT(ACCEL_VERSION_MAJOR) "." ACCEL_TEXT(ACCEL_VERSION_MINOR) "." ACCEL_TEXT(
      ACCEL_VERSION_PATCH);
}

}  // namespace accel

#undef ACCEL_TEXT
#undef ACCEL_TEXT_
