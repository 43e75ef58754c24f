// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// XLA with tensors that wait in host memory.
// expect: accel: offload<...> needs a backend that runs operations one by one;
// expect: use sharded<zero3>, or xla without offload

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using placement = accel::on<accel::xla_device>;
#else
using placement = accel::on<accel::xla_device, accel::offload<accel::optimizer_state>>;
#endif

accel::Accelerator<accel::xla, accel::fp32, accel::accumulate<1>, placement> accelerator;
