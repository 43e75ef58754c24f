// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend where sharded needs a stage.
// expect: accel: sharded<...> needs a stage;
// expect: use zero1, zero2, zero3, fsdp_zero2 or hybrid<zero3>

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::zero3>;
#else
using backend = accel::sharded<accel::ddp>;
#endif
