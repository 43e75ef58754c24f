// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Offloading on one process.
// expect: accel: offload<optimizer_state> needs a backend that shards it;
// expect: use sharded<zero3>, it works on one process too

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::zero3>;
#else
using backend = accel::single;
#endif

accel::Accelerator<backend, accel::fp32, accel::accumulate<1>,
                   accel::on<accel::cuda, accel::offload<accel::optimizer_state>>>
    accelerator;
