// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend whose engine is not in this release.
// expect: accel: sharded<...> needs an engine that this release does not have;
// expect: use ddp, or single on one process

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::ddp;
#else
using backend = accel::full_shard;
#endif

accel::RunnableAccelerator<backend> accelerator;
