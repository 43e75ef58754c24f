// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A faulty case: the compiler does not print this sentence.
// expect: accel: sharded<...> needs a holiday;

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::zero3>;
#else
using backend = accel::sharded<accel::ddp>;
#endif
