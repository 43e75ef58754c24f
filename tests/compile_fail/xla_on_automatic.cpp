// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The backend xla with the default placement, which is never an XLA device.
// expect: accel: xla needs tensors on an XLA device;
// expect: use on<xla_device>, or the backend single

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using placement = accel::on<accel::xla_device>;
#else
using placement = accel::on<accel::automatic>;
#endif

accel::Accelerator<accel::xla, accel::fp32, accel::accumulate<1>, placement> accelerator;
