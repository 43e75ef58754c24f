// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend whose engine is not in this release.
// expect: accel: xla needs an engine that this release does not have;
// expect: use single on<cpu> or on<cuda>

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::single;
using device = accel::cpu;
#else
using backend = accel::xla;
using device = accel::xla_device;
#endif

accel::RunnableAccelerator<backend, accel::fp32, accel::accumulate<1>, accel::on<device>>
    accelerator;
