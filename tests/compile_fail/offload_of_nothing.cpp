// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Nothing to offload.
// expect: accel: offload<...> needs names of what waits elsewhere, each once;
// expect: use offload<optimizer_state>, offload<optimizer_state, parameters> or

#include <accel/policy/placement.hpp>

#ifndef ACCEL_BAD
using extra = accel::offload<accel::optimizer_state>;
#else
using extra = accel::offload<>;
#endif
