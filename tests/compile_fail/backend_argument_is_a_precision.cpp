// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A precision in the place of the backend.
// expect: accel: the Backend argument needs a policy of the backend axis;
// expect: use single, ddp, sharded<Stage>, xla, or a type with these facts

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
accel::Accelerator<accel::single, accel::bf16> accelerator;
#else
accel::Accelerator<accel::bf16, accel::bf16> accelerator;
#endif
