// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The member join_uneven_inputs() where ranks hold parts of what a step needs.
// expect: accel: join_uneven_inputs[(][)] needs a backend whose ranks hold whole models;
// expect: use ddp, or even_batches [(]the default[)] or drop_last in the loader

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using backend = accel::ddp;
#else
using backend = accel::sharded<accel::zero1>;
#endif

void train() {
  accel::Accelerator<backend> accelerator;
  accelerator.join_uneven_inputs();
}
