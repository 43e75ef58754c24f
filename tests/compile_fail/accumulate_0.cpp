// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An accumulation that never steps.
// expect: accel: accumulate<N> needs at least one micro-batch a step;
// expect: use accumulate<1> for none more, or accumulate<dynamic>

#include <accel/policy/accumulation.hpp>

#ifndef ACCEL_BAD
using accumulation = accel::accumulate<1>;
#else
using accumulation = accel::accumulate<0>;
#endif
