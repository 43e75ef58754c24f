// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups in groups.
// expect: accel: hybrid<...> needs a stage that shards gradients over all ranks;
// expect: use hybrid<zero3>, hybrid<fsdp_zero2> or hybrid<zero2>

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
using stage = accel::hybrid<accel::zero3>;
#else
using stage = accel::hybrid<accel::hybrid<accel::zero3>>;
#endif
