// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// XLA with a loss scaler, which reads a number in each step.
// expect: accel: fp16 with its scaler needs a backend that runs operations one by one;
// expect: use bf16 with xla

#include "support/accelerator_head.hpp"

#ifndef ACCEL_BAD
using precision = accel::bf16;
#else
using precision = accel::fp16;
#endif

accel::Accelerator<accel::xla, precision, accel::accumulate<1>, accel::on<accel::xla_device>>
    accelerator;
