// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An offload whose engine is not in this release.
// expect: accel: offload<optimizer_state> needs tensors on the CPU in this release;
// expect: use on<cpu, offload<...>>, which keeps them in a file on a disk

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using placement = accel::on<accel::cpu, accel::offload<accel::optimizer_state>>;
#else
using placement = accel::on<accel::cuda, accel::offload<accel::optimizer_state>>;
#endif

accel::RunnableAccelerator<accel::full_shard, accel::fp32, accel::accumulate<1>, placement>
    accelerator;
