// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// PlacementPolicy, the devices, the extras, and the class template on.

#include "archetype.hpp"

#include <accel/policy/placement.hpp>
#include <accel/policy/stage.hpp>

namespace accel::testing {
namespace {

using offload_both = offload<optimizer_state, parameters>;

// Shipped, and the facts that engines read.
static_assert(PlacementPolicy<on<automatic>> && PlacementPolicy<on<cpu>>);
static_assert(PlacementPolicy<on<cuda>> && PlacementPolicy<on<xla_device>>);
static_assert(PlacementPolicy<on<cuda, offload<optimizer_state>>>);
static_assert(PlacementPolicy<on<cuda, offload_both>>);
static_assert(PlacementPolicy<on<cuda, recomputed<>>>);
static_assert(PlacementPolicy<on<cuda, offload_both, recomputed<wrap_by_size>>>);
static_assert(PlacementPolicy<on<cuda, recomputed<wrap<struct Block>>, offload_both>>);
static_assert(DevicePolicy<automatic> && DevicePolicy<cpu> && DevicePolicy<cuda>);
static_assert(DevicePolicy<xla_device>);
static_assert(PlacementExtras<offload<optimizer_state>> && PlacementExtras<offload_both>);
static_assert(PlacementExtras<recomputed<>>);
static_assert(on<automatic>::device == device_kind::automatic);
static_assert(on<cpu>::device == device_kind::cpu && on<cuda>::device == device_kind::cuda);
static_assert(on<xla_device>::device == device_kind::xla);
static_assert(!on<cpu>::offloads_optimizer_state && !on<cpu>::offloads_parameters);
static_assert(!on<cpu>::recomputes);
static_assert(on<cuda, offload<optimizer_state>>::offloads_optimizer_state);
static_assert(!on<cuda, offload<optimizer_state>>::offloads_parameters);
static_assert(on<cuda, recomputed<>, offload_both>::offloads_parameters);
static_assert(!on<cuda, offload_both>::offloads_activations);
static_assert(on<cuda, offload<activations>>::offloads_activations);
static_assert(!on<cuda, offload<activations>>::offloads_optimizer_state);
static_assert(on<cpu, offload<optimizer_state, activations>>::offloads_optimizer_state);
static_assert(on<cuda, recomputed<>, offload_both>::recomputes);
static_assert(std::same_as<recomputed<wrap_by_size>::units, wrap_by_size>);

// Archetype.
struct has_axis {
  using axis = placement_axis;
};
struct has_device {
  static constexpr device_kind device = device_kind::cpu;
};
struct has_offloads_optimizer_state {
  static constexpr bool offloads_optimizer_state = false;
};
struct has_offloads_parameters {
  static constexpr bool offloads_parameters = false;
};
struct has_offloads_activations {
  static constexpr bool offloads_activations = false;
};
struct has_recomputes {
  static constexpr bool recomputes = false;
};
using least = archetype<has_axis, has_name, has_device, has_offloads_optimizer_state,
                        has_offloads_parameters, has_offloads_activations, has_recomputes>;
static_assert(PlacementPolicy<least>);

// Near misses: a fact is missing.
static_assert(!PlacementPolicy<least::without<has_axis>>);
static_assert(!PlacementPolicy<least::without<has_name>>);
static_assert(!PlacementPolicy<least::without<has_device>>);
static_assert(!PlacementPolicy<least::without<has_offloads_optimizer_state>>);
static_assert(!PlacementPolicy<least::without<has_offloads_parameters>>);
static_assert(!PlacementPolicy<least::without<has_offloads_activations>>);
static_assert(!PlacementPolicy<least::without<has_recomputes>>);

// A fact is of another type.
struct other_axis {
  using axis = struct backend_axis;
};
struct int_device {
  static constexpr int device = 0;
};
struct int_offloads_optimizer_state {
  static constexpr int offloads_optimizer_state = 0;
};
struct int_offloads_parameters {
  static constexpr int offloads_parameters = 0;
};
struct int_offloads_activations {
  static constexpr int offloads_activations = 0;
};
struct int_recomputes {
  static constexpr int recomputes = 0;
};
static_assert(!PlacementPolicy<least::with<has_axis, other_axis>>);
static_assert(!PlacementPolicy<least::with<has_name, empty_name>>);
static_assert(!PlacementPolicy<least::with<has_device, int_device>>);
static_assert(
    !PlacementPolicy<least::with<has_offloads_optimizer_state, int_offloads_optimizer_state>>);
static_assert(!PlacementPolicy<least::with<has_offloads_parameters, int_offloads_parameters>>);
static_assert(!PlacementPolicy<least::with<has_offloads_activations, int_offloads_activations>>);
static_assert(!PlacementPolicy<least::with<has_recomputes, int_recomputes>>);

struct with_state : least {
  int state = 0;
};
static_assert(!PlacementPolicy<with_state>);
static_assert(!PlacementPolicy<int>);
static_assert(!PlacementPolicy<cpu>);

// Parameters are not offloaded without their optimizer state.
struct does_offload_optimizer_state {
  static constexpr bool offloads_optimizer_state = true;
};
struct does_offload_parameters {
  static constexpr bool offloads_parameters = true;
};
using parameters_alone = least::with<has_offloads_parameters, does_offload_parameters>;
static_assert(!PlacementPolicy<parameters_alone>);
static_assert(PlacementPolicy<
              parameters_alone::with<has_offloads_optimizer_state, does_offload_optimizer_state>>);
static_assert(!PlacementPolicy<on<cuda, offload<parameters>>>);

// Devices: archetype and near misses.
struct has_device_tag {
  using kind = placement_device;
};
using least_device = archetype<has_device_tag, has_name, has_device>;
static_assert(DevicePolicy<least_device> && PlacementPolicy<on<least_device>>);
static_assert(!DevicePolicy<least_device::without<has_device_tag>>);
static_assert(!DevicePolicy<least_device::without<has_name>>);
static_assert(!DevicePolicy<least_device::without<has_device>>);
static_assert(!DevicePolicy<least_device::with<has_name, empty_name>>);
static_assert(!DevicePolicy<least_device::with<has_device, int_device>>);
struct device_with_state : least_device {
  int state = 0;
};
static_assert(!DevicePolicy<device_with_state>);

// Extras: archetype and near misses.
struct has_extra_tag {
  using kind = placement_extra;
};
using least_extra = archetype<has_extra_tag, has_name, has_offloads_optimizer_state,
                              has_offloads_parameters, has_offloads_activations, has_recomputes>;
static_assert(PlacementExtras<least_extra> && PlacementPolicy<on<cpu, least_extra>>);
static_assert(!PlacementExtras<least_extra::without<has_extra_tag>>);
static_assert(!PlacementExtras<least_extra::with<has_extra_tag, has_device_tag>>);
static_assert(!PlacementExtras<least_extra::without<has_name>>);
static_assert(!PlacementExtras<least_extra::without<has_offloads_optimizer_state>>);
static_assert(!PlacementExtras<least_extra::without<has_offloads_parameters>>);
static_assert(!PlacementExtras<least_extra::without<has_offloads_activations>>);
static_assert(!PlacementExtras<least_extra::without<has_recomputes>>);
static_assert(!PlacementExtras<least_extra::with<has_recomputes, int_recomputes>>);
struct extra_with_state : least_extra {
  int state = 0;
};
static_assert(!PlacementExtras<extra_with_state>);

// What the templates take.
static_assert(Accepts<on, cpu> && Accepts<on, cuda, recomputed<>>);
static_assert(!Accepts<on>);
static_assert(!Accepts<on, recomputed<>>);
static_assert(!Accepts<on, on<cpu>>);
static_assert(!Accepts<on, cpu, cuda>);
static_assert(!Accepts<on, cpu, optimizer_state>);
static_assert(!Accepts<on, cpu, wrap_auto>);
static_assert(!Accepts<on, cpu, recomputed<>, recomputed<wrap_by_size>>);
static_assert(!Accepts<on, cpu, offload<optimizer_state>, offload<parameters>>);
static_assert(!Accepts<on, cpu, offload<optimizer_state>, offload<activations>>);
static_assert(Accepts<offload, optimizer_state> && Accepts<offload, parameters, optimizer_state>);
static_assert(!Accepts<offload>);
static_assert(Accepts<offload, activations> && Accepts<offload, activations, optimizer_state>);
static_assert(!Accepts<offload, optimizer_state, optimizer_state>);
static_assert(!Accepts<offload, activations, activations>);
static_assert(!Accepts<offload, cpu>);
static_assert(!Accepts<offload, optimizer_state, int>);
static_assert(Accepts<recomputed, wrap_by_size>);
static_assert(!Accepts<recomputed, zero3>);

}  // namespace
}  // namespace accel::testing
