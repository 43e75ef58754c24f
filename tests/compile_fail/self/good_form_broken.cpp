// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A faulty case: the good form does not compile either.
// expect: accel: sharded<...> needs a stage;

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::ddp>;
#else
using backend = accel::sharded<accel::ddp>;
#endif
