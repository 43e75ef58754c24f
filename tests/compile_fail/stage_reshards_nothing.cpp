// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A stage of the user that gives back after forward what was never gathered.
// expect: accel: a stage that reshards after forward needs to shard parameters;
// expect: use reshards_after_forward = false, or shards_parameters = true

#include <accel/policy/backend.hpp>

#ifndef ACCEL_BAD
constexpr bool reshards = false;
#else
constexpr bool reshards = true;
#endif

struct gradients_only {
  using kind = accel::sharding_stage;
  static constexpr std::string_view name = "gradients_only";
  static constexpr bool shards_gradients = true;
  static constexpr bool shards_parameters = false;
  static constexpr bool reshards_after_forward = reshards;
  static constexpr bool in_groups = false;
};

using backend = accel::sharded<gradients_only>;
