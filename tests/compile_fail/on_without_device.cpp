// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An extra in the place of the device.
// expect: accel: on<...> needs a device as its first argument;
// expect: use on<cpu>, on<cuda>, on<automatic> or on<xla_device>

#include <accel/policy/placement.hpp>

#ifndef ACCEL_BAD
using placement = accel::on<accel::cpu, accel::recomputed<>>;
#else
using placement = accel::on<accel::recomputed<>>;
#endif
