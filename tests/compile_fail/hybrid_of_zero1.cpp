// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups that shard the optimizer state only.
// expect: accel: hybrid<...> needs a stage that shards gradients over all ranks;
// expect: use hybrid<zero3>, hybrid<fsdp_zero2> or hybrid<zero2>

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
using backend = accel::sharded<accel::hybrid<accel::zero2>>;
#else
using backend = accel::sharded<accel::hybrid<accel::zero1>>;
#endif
