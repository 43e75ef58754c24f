// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Accumulation and placement in each other's place.
// expect: accel: the Accumulation argument needs a policy of the accumulation axis;
// expect: use accumulate<N> or accumulate<dynamic>, or a type with these facts

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
accel::Accelerator<accel::single, accel::fp32, accel::accumulate<4>, accel::on<accel::cpu>>
    accelerator;
#else
accel::Accelerator<accel::single, accel::fp32, accel::on<accel::cpu>, accel::accumulate<4>>
    accelerator;
#endif
