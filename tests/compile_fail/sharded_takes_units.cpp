// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A module class where a way to cut the module is needed.
// expect: accel: the Units argument needs a way to cut a module;
// expect: use wrap_auto, wrap<BlockImpl> or wrap_by_size

#include <accel/policy/backend.hpp>

struct BlockImpl {};

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::zero3, accel::wrap<BlockImpl>>;
#else
using backend = accel::sharded<accel::zero3, BlockImpl>;
#endif
