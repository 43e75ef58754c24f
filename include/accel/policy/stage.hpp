// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Stages: what the ranks of sharded<Stage> (backend.hpp) split among themselves.
//
// When to use which. Bytes at rest on each of N ranks, for P parameters in fp32 with Adam; ddp has
// 16P.
//   zero1          4P + 12P/N  the optimizer state; no more communication than ddp. 4P more in a
//                              window of several micro-batches
//   zero2          4P + 12P/N  and the gradients; each micro-batch is reduced on its own
//   zero3          16P/N       and the parameters: the model itself does not fit. A unit is
//                              gathered for forward and again for backward
//   fsdp_zero2     16P/N       as zero3, but a unit stays gathered from forward to backward, when
//                              the whole model is in memory: FSDP's SHARD_GRAD_OP
//   hybrid<Stage>  N is the size of a group (one host): shards in a group, replicates over groups,
//                  so that only gradients travel between hosts
#pragma once

#include <accel/detail/fact.hpp>
#include <accel/detail/spelling.hpp>
#include <accel/detail/unmet.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel {

/// The tag of a stage, as the axes have theirs.
struct sharding_stage {};

/// The facts of a stage (the optimizer state is always sharded):
///  - `kind` is sharding_stage, `name` its spelling; the type is empty.
///  - `bool shards_gradients`, `bool shards_parameters`.
///  - `bool reshards_after_forward`: a gathered unit is given back before backward needs it again.
///  - `bool in_groups`: shards in groups of ranks and replicates over the groups.
template <class Stage>
concept HasStageFacts = std::is_empty_v<Stage> && detail::Named<Stage> && requires {
  requires std::same_as<typename Stage::kind, sharding_stage>;
  requires detail::is_fact<Stage::shards_gradients, bool>;
  requires detail::is_fact<Stage::shards_parameters, bool>;
  requires detail::is_fact<Stage::reshards_after_forward, bool>;
  requires detail::is_fact<Stage::in_groups, bool>;
};

/// What is given back after forward has to be a shard at rest.
template <class Stage>
concept ReshardsParameters =
    Stage::shards_parameters || !Stage::reshards_after_forward ||
    detail::unmet<"accel: a stage that reshards after forward needs to shard parameters; "
                  "use reshards_after_forward = false, or shards_parameters = true",
                  Stage>;

/// A stage, shipped or your own.
template <class Stage>
concept StagePolicy =
    (HasStageFacts<Stage> || detail::unmet<"accel: sharded<...> needs a stage; "
                                           "use zero1, zero2, zero3, fsdp_zero2 or hybrid<zero3>",
                                           Stage>) &&
    ReshardsParameters<Stage>;

struct zero1 {
  using kind = sharding_stage;
  static constexpr std::string_view name = "zero1";
  static constexpr bool shards_gradients = false;
  static constexpr bool shards_parameters = false;
  static constexpr bool reshards_after_forward = false;
  static constexpr bool in_groups = false;
};

struct zero2 {
  using kind = sharding_stage;
  static constexpr std::string_view name = "zero2";
  static constexpr bool shards_gradients = true;
  static constexpr bool shards_parameters = false;
  static constexpr bool reshards_after_forward = false;
  static constexpr bool in_groups = false;
};

struct zero3 {
  using kind = sharding_stage;
  static constexpr std::string_view name = "zero3";
  static constexpr bool shards_gradients = true;
  static constexpr bool shards_parameters = true;
  static constexpr bool reshards_after_forward = true;
  static constexpr bool in_groups = false;
};

struct fsdp_zero2 {
  using kind = sharding_stage;
  static constexpr std::string_view name = "fsdp_zero2";
  static constexpr bool shards_gradients = true;
  static constexpr bool shards_parameters = true;
  static constexpr bool reshards_after_forward = false;
  static constexpr bool in_groups = false;
};

/// The stages that hybrid<...> takes. With zero1 each rank would still hold and reduce all
/// gradients, and shard less than zero1 over all ranks does.
template <class Stage>
concept ShardsInGroups =
    (HasStageFacts<Stage> && Stage::shards_gradients && !Stage::in_groups) ||
    detail::unmet<"accel: hybrid<...> needs a stage that shards gradients over all ranks; "
                  "use hybrid<zero3>, hybrid<fsdp_zero2> or hybrid<zero2>",
                  Stage>;

/// `Stage` in each group of ranks; the groups are replicas of each other.
template <class Stage>
  requires ShardsInGroups<Stage>
struct hybrid {
  using kind = sharding_stage;
  static constexpr std::string_view name = detail::text<"hybrid<" + detail::name_of<Stage>() + ">">;
  static constexpr bool shards_gradients = Stage::shards_gradients;
  static constexpr bool shards_parameters = Stage::shards_parameters;
  static constexpr bool reshards_after_forward = Stage::reshards_after_forward;
  static constexpr bool in_groups = true;
};

}  // namespace accel
