// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The member no_sync() where each micro-batch is reduced.
// expect: accel: no_sync[(][)] needs a backend whose ranks hold whole gradients;
// expect: use ddp or sharded<zero1>, or accumulate[(][)], right with every backend

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::zero1>;
#else
using backend = accel::sharded<accel::zero2>;
#endif

void train() {
  accel::Accelerator<backend> accelerator;
  accelerator.no_sync();
}
