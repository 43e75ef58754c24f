// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Two extras that speak of the same thing.
// expect: accel: on<...> needs each kind of extra at most once;
// expect: use one offload<...> and one recomputed<...>

#include <accel/policy/placement.hpp>

#ifndef ACCEL_BAD
using placement =
    accel::on<accel::cuda, accel::offload<accel::optimizer_state>, accel::recomputed<>>;
#else
using placement =
    accel::on<accel::cuda, accel::recomputed<accel::wrap_by_size>, accel::recomputed<>>;
#endif
