// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Parameters wait in host memory and their optimizer state on the device.
// expect: accel: offload<parameters> needs the optimizer state beside them;
// expect: use offload<optimizer_state, parameters>

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using waiting = accel::offload<accel::optimizer_state, accel::parameters>;
#else
using waiting = accel::offload<accel::parameters>;
#endif

accel::Accelerator<accel::full_shard, accel::fp32, accel::accumulate<1>,
                   accel::on<accel::cuda, waiting>>
    accelerator;
