// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The Placement axis: on which device tensors live, what waits elsewhere until it is needed, and
// what is computed again instead of kept. Owns the concept, the devices and on<...>; offload and
// recomputed are in extras.hpp. Moving tensors is the engines' matter, as is a device's index.
//
// When to use which
//   on<automatic>       the default: cuda if the machine has one, else cpu
//   on<cpu>, on<cuda>   the program is for that kind of device
//   on<xla_device>      with the backend xla, and only with it
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/unmet.hpp>
#include <accel/policy/axis.hpp>
#include <accel/policy/device_kind.hpp>
#include <accel/policy/extras.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel {

/// The facts of a placement:
///  - `axis` is placement_axis, `name` its spelling; the type is empty.
///  - `device_kind device`: where computation happens.
///  - `bool offloads_optimizer_state`, `bool offloads_parameters`, `bool offloads_activations`:
///    these wait in host memory or in a file.
///  - `bool recomputes`: activations are computed again in backward, of the units that
///    `units` (a policy of units; wrap_auto without it) finds.
template <class Placement>
concept HasPlacementFacts = std::is_empty_v<Placement> && detail::Named<Placement> && requires {
  requires std::same_as<typename Placement::axis, placement_axis>;
  requires detail::is_fact<Placement::device, device_kind>;
  requires detail::is_fact<Placement::offloads_optimizer_state, bool>;
  requires detail::is_fact<Placement::offloads_parameters, bool>;
  requires detail::is_fact<Placement::offloads_activations, bool>;
  requires detail::is_fact<Placement::recomputes, bool>;
};

/// The optimizer steps where the parameters wait: its state has to be there.
template <class Placement>
concept OffloadsInOrder =
    Placement::offloads_optimizer_state || !Placement::offloads_parameters ||
    detail::unmet<"accel: offload<parameters> needs the optimizer state beside them; "
                  "use offload<optimizer_state, parameters>",
                  Placement>;

/// A policy of the Placement axis, shipped or your own.
template <class Placement>
concept PlacementPolicy =
    (HasPlacementFacts<Placement> ||
     detail::unmet<"accel: the Placement argument needs a policy of the placement axis; "
                   "use on<cpu>, on<cuda>, on<automatic>, or a type with these facts",
                   Placement>) &&
    OffloadsInOrder<Placement>;

/// The tag of a device, as the axes have theirs.
struct placement_device {};

/// The facts of a device:
///  - `kind` is placement_device, `name` its spelling; the type is empty.
///  - `device_kind device`.
template <class Device>
concept HasDeviceFacts = std::is_empty_v<Device> && detail::Named<Device> && requires {
  requires std::same_as<typename Device::kind, placement_device>;
  requires detail::is_fact<Device::device, device_kind>;
};

/// The first argument of on<...>.
template <class Device>
concept DevicePolicy = HasDeviceFacts<Device> ||
                       detail::unmet<"accel: on<...> needs a device as its first argument; "
                                     "use on<cpu>, on<cuda>, on<automatic> or on<xla_device>",
                                     Device>;

struct automatic {
  using kind = placement_device;
  static constexpr std::string_view name = "automatic";
  static constexpr device_kind device = device_kind::automatic;
};

struct cpu {
  using kind = placement_device;
  static constexpr std::string_view name = "cpu";
  static constexpr device_kind device = device_kind::cpu;
};

struct cuda {
  using kind = placement_device;
  static constexpr std::string_view name = "cuda";
  static constexpr device_kind device = device_kind::cuda;
};

struct xla_device {
  using kind = placement_device;
  static constexpr std::string_view name = "xla_device";
  static constexpr device_kind device = device_kind::xla;
};

/// Tensors live on this device, except for what the extras say.
template <DevicePolicy Device, class... Extras>
  requires PlacementExtras<Extras...> && DistinctExtras<Extras...>
struct on {
  using axis = placement_axis;
  static constexpr std::string_view name =
      detail::text<"on<" + detail::names_of<Device, Extras...>() + ">">;
  static constexpr device_kind device = Device::device;
  static constexpr bool offloads_optimizer_state = (Extras::offloads_optimizer_state || ...);
  static constexpr bool offloads_parameters = (Extras::offloads_parameters || ...);
  static constexpr bool offloads_activations = (Extras::offloads_activations || ...);
  static constexpr bool recomputes = (Extras::recomputes || ...);
  using units = typename detail::RecomputedUnitsOf<Extras...>::type;
};

}  // namespace accel
