// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Units of no class.
// expect: accel: wrap<...> needs module classes, each named once;
// expect: use wrap<BlockImpl>, or wrap_auto, which finds them

#include <accel/policy/units.hpp>

#ifndef ACCEL_BAD
using units = accel::wrap<struct BlockImpl>;
#else
using units = accel::wrap<>;
#endif
