// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The Backend axis: how replicas of the model cooperate. Owns the concept and the policies; what a
// stage shards is in stage.hpp, how a module is cut is in units.hpp, how it goes with the other
// axes is in compatible.hpp.
//
// When to use which
//   single           one process, one device
//   ddp              everything fits on each device: the fastest of the rest
//   sharded<zero1>   the optimizer state does not fit, or is better spent on a larger batch
//   sharded<zero2>   nor do the gradients
//   sharded<zero3>   nor does the model. Works on one process too
//   xla              not in this release: operations are recorded, compiled by XLA and run as one
//                    graph a step; it pays where shapes repeat
// The names of PyTorch's FSDP lead to the same types: full_shard, shard_grad_op, hybrid_shard,
// hybrid_shard_zero2, no_shard.
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/unmet.hpp>
#include <accel/policy/axis.hpp>
#include <accel/policy/stage.hpp>
#include <accel/policy/units.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel {

/// The facts of a backend:
///  - `axis` is backend_axis, `name` its spelling; the type is empty.
///  - `bool distributed`: ranks cooperate over a process group.
///  - `bool shards_optimizer_state`, `bool shards_gradients`, `bool shards_parameters`: what each
///    rank holds a part of only.
///  - `bool hybrid`: shards in groups of ranks and replicates over the groups.
///  - `bool lazy`: operations are recorded and run later as one graph.
template <class Backend>
concept HasBackendFacts = std::is_empty_v<Backend> && detail::Named<Backend> && requires {
  requires std::same_as<typename Backend::axis, backend_axis>;
  requires detail::is_fact<Backend::distributed, bool>;
  requires detail::is_fact<Backend::shards_optimizer_state, bool>;
  requires detail::is_fact<Backend::shards_gradients, bool>;
  requires detail::is_fact<Backend::shards_parameters, bool>;
  requires detail::is_fact<Backend::hybrid, bool>;
  requires detail::is_fact<Backend::lazy, bool>;
};

/// A rank that holds a part of something has other ranks for the rest.
template <class Backend>
concept ShardsOverRanks = Backend::distributed ||
                          !(Backend::shards_optimizer_state || Backend::shards_gradients ||
                            Backend::shards_parameters || Backend::hybrid) ||
                          detail::unmet<"accel: a backend that shards needs ranks; "
                                        "use distributed = true",
                                        Backend>;

/// The order of the ZeRO stages: who holds a part of the parameters needs the gradients and the
/// optimizer state of that part only.
template <class Backend>
concept ShardsInOrder =
    ((Backend::shards_optimizer_state || !Backend::shards_gradients) &&
     (Backend::shards_gradients || !(Backend::shards_parameters || Backend::hybrid))) ||
    detail::unmet<"accel: a backend that shards needs to do it in the order of the ZeRO stages; "
                  "use optimizer state, then gradients, then parameters or groups",
                  Backend>;

/// A policy of the Backend axis, shipped or your own.
template <class Backend>
concept BackendPolicy =
    (HasBackendFacts<Backend> ||
     detail::unmet<"accel: the Backend argument needs a policy of the backend axis; "
                   "use single, ddp, sharded<Stage>, xla, or a type with these facts",
                   Backend>) &&
    ShardsOverRanks<Backend> && ShardsInOrder<Backend>;

/// One process, one device.
struct single {
  using axis = backend_axis;
  static constexpr std::string_view name = "single";
  static constexpr bool distributed = false;
  static constexpr bool shards_optimizer_state = false;
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = false;
};

/// Every rank holds everything; gradients are averaged while backward still runs.
struct ddp {
  using axis = backend_axis;
  static constexpr std::string_view name = "ddp";
  static constexpr bool distributed = true;
  static constexpr bool shards_optimizer_state = false;
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = false;
};

/// Each rank holds a part of what the stage names, and gets the rest when it is needed, a unit at a
/// time.
template <StagePolicy Stage, UnitPolicy Units = wrap_auto>
struct sharded {
  using axis = backend_axis;
  using stage = Stage;
  using units = Units;
  static constexpr std::string_view name = [] {
    if constexpr (std::same_as<Units, wrap_auto>) {
      return detail::text<"sharded<" + detail::names_of<Stage>() + ">">;
    } else {
      return detail::text<"sharded<" + detail::names_of<Stage, Units>() + ">">;
    }
  }();
  static constexpr bool distributed = true;
  static constexpr bool shards_optimizer_state = true;
  static constexpr bool shards_gradients = Stage::shards_gradients;
  static constexpr bool shards_parameters = Stage::shards_parameters;
  static constexpr bool hybrid = Stage::in_groups;
  static constexpr bool lazy = false;
};

/// One process, one XLA device, one compiled graph a step.
struct xla {
  using axis = backend_axis;
  static constexpr std::string_view name = "xla";
  static constexpr bool distributed = false;
  static constexpr bool shards_optimizer_state = false;
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool hybrid = false;
  static constexpr bool lazy = true;
};

using full_shard = sharded<zero3>;
using shard_grad_op = sharded<fsdp_zero2>;
using hybrid_shard = sharded<hybrid<zero3>>;
using hybrid_shard_zero2 = sharded<hybrid<fsdp_zero2>>;
using no_shard = ddp;

namespace detail {

/// Whether a gathered unit is given back between forward and backward. A backend of the user's own
/// need not have a stage.
template <class Backend>
constexpr bool reshards_after_forward() {
  if constexpr (requires { typename Backend::stage; })
    return Backend::stage::reshards_after_forward;
  else
    return Backend::shards_parameters;
}

}  // namespace detail

}  // namespace accel
