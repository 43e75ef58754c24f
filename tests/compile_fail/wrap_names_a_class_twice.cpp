// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A module class that is named twice.
// expect: accel: wrap<...> needs module classes, each named once;
// expect: use wrap<BlockImpl>, or wrap_auto, which finds them

#include <accel/policy/units.hpp>

#ifndef ACCEL_BAD
using units = accel::wrap<struct BlockImpl, struct HeadImpl>;
#else
using units = accel::wrap<struct BlockImpl, struct BlockImpl>;
#endif
