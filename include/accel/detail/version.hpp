// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The version, as macros for feature tests and as what the compiled library says of itself.
#pragma once

#define ACCEL_VERSION_MAJOR 0
#define ACCEL_VERSION_MINOR 1
#define ACCEL_VERSION_PATCH 0

namespace accel {

/// The version that the compiled library was built as, for example "0.1.0". Differs from the macros
/// only where headers and library come from two installations.
const char* version() noexcept;

}  // namespace accel
