// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// XLA with recomputation, which its compiler would remove.
// expect: accel: recomputed<...> needs a backend that runs operations one by one;
// expect: use xla without recomputed, XLA recomputes by itself

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using placement = accel::on<accel::xla_device>;
#else
using placement = accel::on<accel::xla_device, accel::recomputed<>>;
#endif

accel::Accelerator<accel::xla, accel::fp32, accel::accumulate<1>, placement> accelerator;
