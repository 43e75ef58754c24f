// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The backend xla with tensors on the CPU.
// expect: accel: xla needs tensors on an XLA device;
// expect: use on<xla_device>, or the backend single

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using device = accel::xla_device;
#else
using device = accel::cpu;
#endif

accel::Accelerator<accel::xla, accel::fp32, accel::accumulate<1>, accel::on<device>> accelerator;
