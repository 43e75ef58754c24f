// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What on<Device, Extras...> (placement.hpp) takes beside the device. Which backends can do it is
// in compatible.hpp.
//
// When to use which
//   offload<optimizer_state>              the optimizer state does not fit into memory: on<cpu> it
//                                         waits in files on a disk (AcceleratorOptions::offload)
//   offload<optimizer_state, parameters>  nor do the parameters
//   offload<activations>                  what backward needs does not fit, and a disk (or, beside a
//                                         GPU, the host) is quicker than to compute it again; with
//                                         every eager backend
//   recomputed<Units>                     nor does it fit: a unit keeps its inputs only, and runs
//                                         again in backward; with every eager backend
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/type_list.hpp>
#include <accel/detail/unmet.hpp>
#include <accel/policy/units.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel {

/// The tag of an extra, as the axes have theirs.
struct placement_extra {};

/// The facts of an extra, which mean what they mean for a placement:
///  - `kind` is placement_extra, `name` its spelling; the type is empty.
///  - `bool offloads_optimizer_state`, `bool offloads_parameters`, `bool offloads_activations`,
///    `bool recomputes`.
template <class Extra>
concept HasExtraFacts = std::is_empty_v<Extra> && detail::Named<Extra> && requires {
  requires std::same_as<typename Extra::kind, placement_extra>;
  requires detail::is_fact<Extra::offloads_optimizer_state, bool>;
  requires detail::is_fact<Extra::offloads_parameters, bool>;
  requires detail::is_fact<Extra::offloads_activations, bool>;
  requires detail::is_fact<Extra::recomputes, bool>;
};

/// The further arguments of on<...>. One concept for all of them: g++ does not look into a fold
/// over constraints, and would not print the sentence of one that fails in it.
template <class... Extras>
concept PlacementExtras = (HasExtraFacts<Extras> && ...) ||
                          detail::unmet<"accel: on<...> needs extras after the device; "
                                        "use offload<optimizer_state>, recomputed<Units>, or none",
                                        Extras...>;

/// What can be offloaded.
struct optimizer_state {
  static constexpr std::string_view name = "optimizer_state";
};
struct parameters {
  static constexpr std::string_view name = "parameters";
};
struct activations {
  static constexpr std::string_view name = "activations";
};

/// The arguments of offload<...>, in any order.
template <class... Parts>
concept Offloadable =
    (sizeof...(Parts) > 0 && detail::distinct<Parts...> &&
     ((std::same_as<Parts, optimizer_state> || std::same_as<Parts, parameters> ||
       std::same_as<Parts, activations>) &&
      ...)) ||
    detail::unmet<"accel: offload<...> needs names of what waits elsewhere, each once; "
                  "use offload<optimizer_state>, offload<optimizer_state, parameters> or "
                  "offload<activations>",
                  Parts...>;

/// These wait in host memory or in a file until they are needed: shards a unit at a time, what
/// autograd saved a tensor at a time.
template <class... Parts>
  requires Offloadable<Parts...>
struct offload {
  using kind = placement_extra;
  static constexpr std::string_view name =
      detail::text<"offload<" + detail::names_of<Parts...>() + ">">;
  static constexpr bool offloads_optimizer_state = detail::count_of<optimizer_state, Parts...> == 1;
  static constexpr bool offloads_parameters = detail::count_of<parameters, Parts...> == 1;
  static constexpr bool offloads_activations = detail::count_of<activations, Parts...> == 1;
  static constexpr bool recomputes = false;
};

/// Units keep their inputs only, and run again in backward. The function that does it for one call
/// is accel::recompute.
template <UnitPolicy Units = wrap_auto>
struct recomputed {
  using kind = placement_extra;
  using units = Units;
  static constexpr std::string_view name =
      detail::text<"recomputed<" + detail::name_of<Units>() + ">">;
  static constexpr bool offloads_optimizer_state = false;
  static constexpr bool offloads_parameters = false;
  static constexpr bool offloads_activations = false;
  static constexpr bool recomputes = true;
};

namespace detail {

/// The units of the extra that recomputes; wrap_auto where none says which.
template <class... Extras>
struct RecomputedUnitsOf {
  using type = wrap_auto;
};
template <class First, class... Rest>
struct RecomputedUnitsOf<First, Rest...> : RecomputedUnitsOf<Rest...> {};
template <class Units, class... Rest>
struct RecomputedUnitsOf<recomputed<Units>, Rest...> {
  using type = Units;
};

}  // namespace detail

/// No two extras speak of the same thing, which would leave open which of them holds.
template <class... Extras>
concept DistinctExtras = ((0 + ... +
                           int{Extras::offloads_optimizer_state || Extras::offloads_parameters ||
                               Extras::offloads_activations}) <= 1 &&
                          (0 + ... + int{Extras::recomputes}) <= 1) ||
                         detail::unmet<"accel: on<...> needs each kind of extra at most once; "
                                       "use one offload<...> and one recomputed<...>",
                                       Extras...>;

}  // namespace accel
