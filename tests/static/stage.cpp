// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// StagePolicy and the class template hybrid.

#include "archetype.hpp"

#include <accel/policy/backend.hpp>
#include <accel/policy/stage.hpp>

namespace accel::testing {
namespace {

// Shipped.
static_assert(StagePolicy<zero1>);
static_assert(StagePolicy<zero2>);
static_assert(StagePolicy<zero3>);
static_assert(StagePolicy<fsdp_zero2>);
static_assert(StagePolicy<hybrid<zero2>>);
static_assert(StagePolicy<hybrid<zero3>>);
static_assert(StagePolicy<hybrid<fsdp_zero2>>);
static_assert(zero3::reshards_after_forward && !fsdp_zero2::reshards_after_forward);
static_assert(hybrid<zero3>::reshards_after_forward && hybrid<zero3>::in_groups);
static_assert(!hybrid<fsdp_zero2>::reshards_after_forward);
static_assert(hybrid<zero2>::shards_gradients && !hybrid<zero2>::shards_parameters);

// Archetype.
struct has_kind {
  using kind = sharding_stage;
};
struct has_shards_gradients {
  static constexpr bool shards_gradients = false;
};
struct has_shards_parameters {
  static constexpr bool shards_parameters = false;
};
struct has_reshards {
  static constexpr bool reshards_after_forward = false;
};
struct has_in_groups {
  static constexpr bool in_groups = false;
};
using least = archetype<has_kind, has_name, has_shards_gradients, has_shards_parameters,
                        has_reshards, has_in_groups>;
static_assert(StagePolicy<least>);
static_assert(BackendPolicy<sharded<least>>);

// Near misses: a fact is missing.
static_assert(!StagePolicy<least::without<has_kind>>);
static_assert(!StagePolicy<least::without<has_name>>);
static_assert(!StagePolicy<least::without<has_shards_gradients>>);
static_assert(!StagePolicy<least::without<has_shards_parameters>>);
static_assert(!StagePolicy<least::without<has_reshards>>);
static_assert(!StagePolicy<least::without<has_in_groups>>);

// A fact is of another type.
struct other_kind {
  using kind = struct backend_axis;
};
struct int_shards_gradients {
  static constexpr int shards_gradients = 0;
};
struct int_shards_parameters {
  static constexpr int shards_parameters = 0;
};
struct int_reshards {
  static constexpr int reshards_after_forward = 0;
};
struct int_in_groups {
  static constexpr int in_groups = 0;
};
static_assert(!StagePolicy<least::with<has_kind, other_kind>>);
static_assert(!StagePolicy<least::with<has_name, empty_name>>);
static_assert(!StagePolicy<least::with<has_shards_gradients, int_shards_gradients>>);
static_assert(!StagePolicy<least::with<has_shards_parameters, int_shards_parameters>>);
static_assert(!StagePolicy<least::with<has_reshards, int_reshards>>);
static_assert(!StagePolicy<least::with<has_in_groups, int_in_groups>>);

struct with_state : least {
  int state = 0;
};
static_assert(!StagePolicy<with_state>);
static_assert(!StagePolicy<int>);
static_assert(!StagePolicy<ddp>);

// Facts that contradict each other. A stage that shards parameters without gradients makes a
// backend that is refused, whichever way it came to that.
struct does_reshard {
  static constexpr bool reshards_after_forward = true;
};
struct does_shard_parameters {
  static constexpr bool shards_parameters = true;
};
static_assert(!StagePolicy<least::with<has_reshards, does_reshard>>);
using parameters_only = least::with<has_shards_parameters, does_shard_parameters>;
static_assert(StagePolicy<parameters_only> && !BackendPolicy<sharded<parameters_only>>);

// What hybrid takes.
static_assert(Accepts<hybrid, zero2>);
static_assert(Accepts<hybrid, zero3>);
static_assert(Accepts<hybrid, fsdp_zero2>);
static_assert(!Accepts<hybrid, zero1>);
static_assert(!Accepts<hybrid, hybrid<zero3>>);
static_assert(!Accepts<hybrid, sharded<zero3>>);
static_assert(!Accepts<hybrid, int>);

}  // namespace
}  // namespace accel::testing
