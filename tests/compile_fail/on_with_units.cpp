// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Units beside the device, which say how to cut and not what to do.
// expect: accel: on<...> needs extras after the device;
// expect: use offload<optimizer_state>, recomputed<Units>, or none

#include <accel/policy/placement.hpp>

#ifndef ACCEL_BAD
using placement = accel::on<accel::cpu, accel::recomputed<accel::wrap_by_size>>;
#else
using placement = accel::on<accel::cpu, accel::wrap_by_size>;
#endif
