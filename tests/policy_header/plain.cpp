// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The header that plain.yaml becomes, in the default namespace; apply takes a class with
// Accelerator's head.
#include <accel_policies.hpp>

#include <concepts>
#include <string_view>

namespace {

template <accel::BackendPolicy Backend = accel::single,
          accel::PrecisionPolicy Precision = accel::fp32,
          accel::AccumulationPolicy Accumulation = accel::accumulate<1>,
          accel::PlacementPolicy Placement = accel::on<accel::automatic>>
  requires accel::ComposablePolicies<Backend, Precision, Accumulation, Placement>
struct Head {};

static_assert(std::same_as<configured::Backend, accel::ddp>);
static_assert(std::same_as<configured::Precision, accel::bf16>);
static_assert(std::same_as<configured::Accumulation, accel::accumulate<4>>);
static_assert(std::same_as<configured::Placement, accel::on<accel::cpu>>);
static_assert(
    std::same_as<configured::apply<Head>,
                 Head<accel::ddp, accel::bf16, accel::accumulate<4>, accel::on<accel::cpu>>>);

}  // namespace

std::string_view plain_backend() { return configured::Backend::name; }
