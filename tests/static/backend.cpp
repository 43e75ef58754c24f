// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// BackendPolicy and the class template sharded.

#include "archetype.hpp"

#include <accel/policy/backend.hpp>

namespace accel::testing {
namespace {

// Shipped.
static_assert(BackendPolicy<single>);
static_assert(BackendPolicy<ddp>);
static_assert(BackendPolicy<sharded<zero1>>);
static_assert(BackendPolicy<sharded<zero2>>);
static_assert(BackendPolicy<sharded<zero3>>);
static_assert(BackendPolicy<sharded<fsdp_zero2>>);
static_assert(BackendPolicy<sharded<hybrid<zero2>>>);
static_assert(BackendPolicy<sharded<hybrid<zero3>>>);
static_assert(BackendPolicy<sharded<hybrid<fsdp_zero2>>>);
static_assert(BackendPolicy<sharded<zero3, wrap_by_size>>);
static_assert(BackendPolicy<sharded<zero3, wrap<struct Block>>>);
static_assert(BackendPolicy<xla>);

// The names of FSDP.
static_assert(std::same_as<full_shard, sharded<zero3>>);
static_assert(std::same_as<shard_grad_op, sharded<fsdp_zero2>>);
static_assert(std::same_as<hybrid_shard, sharded<hybrid<zero3>>>);
static_assert(std::same_as<hybrid_shard_zero2, sharded<hybrid<fsdp_zero2>>>);
static_assert(std::same_as<no_shard, ddp>);

// The facts that engines read.
static_assert(!single::distributed && ddp::distributed && !xla::distributed && xla::lazy);
static_assert(sharded<zero1>::shards_optimizer_state && !sharded<zero1>::shards_gradients);
static_assert(sharded<zero2>::shards_gradients && !sharded<zero2>::shards_parameters);
static_assert(sharded<zero3>::shards_parameters && !sharded<zero3>::hybrid);
static_assert(shard_grad_op::shards_parameters);
static_assert(hybrid_shard::hybrid && hybrid_shard::shards_parameters);
static_assert(std::same_as<sharded<zero3>::stage, zero3>);
static_assert(std::same_as<sharded<zero3>::units, wrap_auto>);
static_assert(std::same_as<sharded<zero3, wrap_by_size>::units, wrap_by_size>);

// Archetype.
struct has_axis {
  using axis = backend_axis;
};
struct has_distributed {
  static constexpr bool distributed = false;
};
struct has_shards_optimizer_state {
  static constexpr bool shards_optimizer_state = false;
};
struct has_shards_gradients {
  static constexpr bool shards_gradients = false;
};
struct has_shards_parameters {
  static constexpr bool shards_parameters = false;
};
struct has_hybrid {
  static constexpr bool hybrid = false;
};
struct has_lazy {
  static constexpr bool lazy = false;
};
using least = archetype<has_axis, has_name, has_distributed, has_shards_optimizer_state,
                        has_shards_gradients, has_shards_parameters, has_hybrid, has_lazy>;
static_assert(BackendPolicy<least>);

// Near misses: a fact is missing.
static_assert(!BackendPolicy<least::without<has_axis>>);
static_assert(!BackendPolicy<least::without<has_name>>);
static_assert(!BackendPolicy<least::without<has_distributed>>);
static_assert(!BackendPolicy<least::without<has_shards_optimizer_state>>);
static_assert(!BackendPolicy<least::without<has_shards_gradients>>);
static_assert(!BackendPolicy<least::without<has_shards_parameters>>);
static_assert(!BackendPolicy<least::without<has_hybrid>>);
static_assert(!BackendPolicy<least::without<has_lazy>>);

// A fact is of another type.
struct other_axis {
  using axis = struct precision_axis;
};
struct int_distributed {
  static constexpr int distributed = 0;
};
struct int_shards_optimizer_state {
  static constexpr int shards_optimizer_state = 0;
};
struct int_shards_gradients {
  static constexpr int shards_gradients = 0;
};
struct int_shards_parameters {
  static constexpr int shards_parameters = 0;
};
struct int_hybrid {
  static constexpr int hybrid = 0;
};
struct int_lazy {
  static constexpr int lazy = 0;
};
static_assert(!BackendPolicy<least::with<has_axis, other_axis>>);
static_assert(!BackendPolicy<least::with<has_name, empty_name>>);
static_assert(!BackendPolicy<least::with<has_name, text_name>>);
static_assert(!BackendPolicy<least::with<has_distributed, int_distributed>>);
static_assert(!BackendPolicy<least::with<has_shards_optimizer_state, int_shards_optimizer_state>>);
static_assert(!BackendPolicy<least::with<has_shards_gradients, int_shards_gradients>>);
static_assert(!BackendPolicy<least::with<has_shards_parameters, int_shards_parameters>>);
static_assert(!BackendPolicy<least::with<has_hybrid, int_hybrid>>);
static_assert(!BackendPolicy<least::with<has_lazy, int_lazy>>);

// A fact is no constant. g++ 12 accepts the variable where is_fact is a concept (detail/fact.hpp).
struct variable_lazy {
  static inline bool lazy = false;
};
struct member_lazy {
  bool lazy;
};
struct function_lazy {
  static constexpr bool lazy() { return false; }
};
static_assert(!BackendPolicy<least::with<has_lazy, variable_lazy>>);
static_assert(!BackendPolicy<least::with<has_lazy, member_lazy>>);
static_assert(!BackendPolicy<least::with<has_lazy, function_lazy>>);
static_assert(!BackendPolicy<least::with<has_name, variable_name>>);

// The type is not empty, or no class.
struct with_state : least {
  int state = 0;
};
static_assert(!BackendPolicy<with_state>);
static_assert(!BackendPolicy<int>);
static_assert(!BackendPolicy<void>);
static_assert(!BackendPolicy<single&>);

// Facts that contradict each other.
struct is_distributed {
  static constexpr bool distributed = true;
};
struct does_shard_optimizer_state {
  static constexpr bool shards_optimizer_state = true;
};
struct does_shard_gradients {
  static constexpr bool shards_gradients = true;
};
struct does_shard_parameters {
  static constexpr bool shards_parameters = true;
};
struct is_hybrid {
  static constexpr bool hybrid = true;
};
using over_ranks = least::with<has_distributed, is_distributed>;
using like_zero1 = over_ranks::with<has_shards_optimizer_state, does_shard_optimizer_state>;
using like_zero2 = like_zero1::with<has_shards_gradients, does_shard_gradients>;
static_assert(BackendPolicy<over_ranks> && BackendPolicy<like_zero1> && BackendPolicy<like_zero2>);
static_assert(BackendPolicy<like_zero2::with<has_shards_parameters, does_shard_parameters>>);
static_assert(BackendPolicy<like_zero2::with<has_hybrid, is_hybrid>>);
static_assert(!BackendPolicy<least::with<has_shards_optimizer_state, does_shard_optimizer_state>>);
static_assert(!BackendPolicy<over_ranks::with<has_shards_gradients, does_shard_gradients>>);
static_assert(!BackendPolicy<like_zero1::with<has_shards_parameters, does_shard_parameters>>);
static_assert(!BackendPolicy<like_zero1::with<has_hybrid, is_hybrid>>);

// What sharded takes.
static_assert(Accepts<sharded, zero3>);
static_assert(Accepts<sharded, zero3, wrap_by_size>);
static_assert(!Accepts<sharded, ddp>);
static_assert(!Accepts<sharded, sharded<zero3>>);
static_assert(!Accepts<sharded, zero3, zero3>);
static_assert(!Accepts<sharded, wrap_auto>);

}  // namespace
}  // namespace accel::testing
