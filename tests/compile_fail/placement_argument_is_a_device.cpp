// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A device that nothing is placed on.
// expect: accel: the Placement argument needs a policy of the placement axis;
// expect: use on<cpu>, on<cuda>, on<automatic>, or a type with these facts

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
accel::Accelerator<accel::single, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
    accelerator;
#else
accel::Accelerator<accel::single, accel::fp32, accel::accumulate<1>, accel::cpu> accelerator;
#endif
