// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Masters of parameters that are fp32 already.
// expect: accel: with_masters<...> needs a precision with 16-bit parameters;
// expect: use with_masters<bf16_true>, or bf16, whose parameters are fp32

#include <accel/policy/precision.hpp>

#ifndef ACCEL_BAD
using precision = accel::with_masters<accel::bf16_true>;
#else
using precision = accel::with_masters<accel::bf16>;
#endif
