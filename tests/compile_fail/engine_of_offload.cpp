// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A placement whose engine is not in this release.
// expect: accel: offload<...> needs an engine that this release does not have;
// expect: use the same placement without it

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using placement = accel::on<accel::cpu>;
#else
using placement = accel::on<accel::cpu, accel::offload<accel::optimizer_state>>;
#endif

accel::RunnableAccelerator<accel::full_shard, accel::fp32, accel::accumulate<1>, placement>
    accelerator;
