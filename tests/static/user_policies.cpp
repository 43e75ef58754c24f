// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A policy of each axis as a user writes it: an empty struct with the facts, and nothing to
// register.

#include "archetype.hpp"

#include <accel/policies.hpp>

namespace simulation {

/// Everything in double precision, as solvers want it.
struct fp64 {
  using axis = accel::precision_axis;
  static constexpr std::string_view name = "fp64";
  static constexpr accel::element_type parameter_type = accel::element_type::float64;
  static constexpr accel::element_type compute_type = accel::element_type::float64;
  static constexpr accel::element_type reduce_type = accel::element_type::float64;
  static constexpr bool needs_scaler = false;
  static constexpr bool master_weights = false;
};

/// Gradients averaged by the simulation's own exchange.
struct halo_exchange {
  using axis = accel::backend_axis;
  static constexpr std::string_view name = "halo_exchange";
  static constexpr bool distributed = true;
  static constexpr bool shards_optimizer_state = false;
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = false;
};

/// As accumulate<8>, under the name that the program's users know.
struct time_window {
  using axis = accel::accumulation_axis;
  static constexpr std::string_view name = "time_window";
  static constexpr bool is_static = true;
  static constexpr std::int64_t steps = 8;
};

/// A change of one fact of a shipped policy.
struct beside_solver : accel::on<accel::cpu> {
  static constexpr std::string_view name = "beside_solver";
  static constexpr bool recomputes = true;
};

}  // namespace simulation

namespace accel::testing {
namespace {

static_assert(PrecisionPolicy<simulation::fp64>);
static_assert(BackendPolicy<simulation::halo_exchange>);
static_assert(AccumulationPolicy<simulation::time_window>);
static_assert(PlacementPolicy<simulation::beside_solver>);
static_assert(ComposablePolicies<simulation::halo_exchange, simulation::fp64,
                                 simulation::time_window, simulation::beside_solver>);
static_assert(ComposablePolicies<ddp, simulation::fp64, accumulate<4>, on<cuda>>);
static_assert(HasEngine<simulation::halo_exchange, on<cpu>>);

// The rules hold for them too.
static_assert(!ComposablePolicies<xla, fp32, accumulate<1>, simulation::beside_solver>);
static_assert(!ComposablePolicies<simulation::halo_exchange, fp32, accumulate<1>,
                                  on<cpu, offload<optimizer_state>>>);

}  // namespace
}  // namespace accel::testing
