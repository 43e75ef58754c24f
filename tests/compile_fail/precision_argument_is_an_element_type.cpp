// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A type of C++ in the place of the precision.
// expect: accel: the Precision argument needs a policy of the precision axis;
// expect: use fp32, bf16, fp16, bf16_true, or a type with these facts

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
accel::Accelerator<accel::single, accel::fp32> accelerator;
#else
accel::Accelerator<accel::single, float> accelerator;
#endif
