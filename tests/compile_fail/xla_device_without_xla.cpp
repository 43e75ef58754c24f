// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations one by one on a device that has none.
// expect: accel: on<xla_device> needs a backend that records graphs;
// expect: use the backend xla, or on<automatic>

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::xla;
#else
using backend = accel::ddp;
#endif

accel::Accelerator<backend, accel::fp32, accel::accumulate<1>, accel::on<accel::xla_device>>
    accelerator;
