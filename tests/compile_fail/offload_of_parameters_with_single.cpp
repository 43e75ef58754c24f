// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Offloading parameters on one process.
// expect: accel: offload<parameters> needs a backend that shards them;
// expect: use sharded<zero3>, it works on one process too

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::full_shard;
#else
using backend = accel::single;
#endif

using waiting = accel::offload<accel::optimizer_state, accel::parameters>;

accel::Accelerator<backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cuda, waiting>>
    accelerator;
