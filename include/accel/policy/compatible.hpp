// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which policies go together: every rule between two axes, one concept a rule, each with the
// sentence that the compiler prints where it fails. The class head of Accelerator names the
// composed concept. What holds inside one axis is in that axis's file. The whole table is in
// matrix.hpp, and as a page in docs/policies.md.
//
// A program that asks whether policies go together does it inside a template: outside of one,
// naming a class with arguments that it refuses is an error and not `false`.
#pragma once

#include <accel/detail/unmet.hpp>
#include <accel/policy/accumulation.hpp>
#include <accel/policy/axis.hpp>
#include <accel/policy/backend.hpp>
#include <accel/policy/device_kind.hpp>
#include <accel/policy/placement.hpp>
#include <accel/policy/precision.hpp>

namespace accel {

/// A graph is recorded for a compiler, and XLA's is the one there is; `automatic` never means it.
template <class Backend, class Placement>
concept RecordsOnXla = !Backend::lazy || Placement::device == device_kind::xla ||
                       detail::unmet<"accel: xla needs tensors on an XLA device; "
                                     "use on<xla_device>, or the backend single",
                                     Backend, Placement>;

/// An XLA device has no operations of its own: they exist in compiled graphs only.
template <class Placement, class Backend>
concept RunsOnDevice = Placement::device != device_kind::xla || Backend::lazy ||
                       detail::unmet<"accel: on<xla_device> needs a backend that records graphs; "
                                     "use the backend xla, or on<automatic>",
                                     Placement, Backend>;

/// A graph names its tensors once, on the device, and they stay there from step to step.
template <class Placement, class Backend>
concept StaysInGraph =
    !Backend::lazy ||
    !(Placement::offloads_optimizer_state || Placement::offloads_parameters ||
      Placement::offloads_activations) ||
    detail::unmet<"accel: offload<...> needs a backend that runs operations one by one; "
                  "use sharded<zero3>, or xla without offload",
                  Placement, Backend>;

/// A compiler of graphs removes what is computed twice, and trades memory for time by itself.
template <class Placement, class Backend>
concept RecomputesOn =
    !Backend::lazy || !Placement::recomputes ||
    detail::unmet<"accel: recomputed<...> needs a backend that runs operations one by one; "
                  "use xla without recomputed, XLA recomputes by itself",
                  Placement, Backend>;

/// The scaler reads in each step whether gradients overflowed: it would cut the graph there.
template <class Precision, class Backend>
concept ScalesLossOn =
    !Backend::lazy || !Precision::needs_scaler ||
    detail::unmet<"accel: fp16 with its scaler needs a backend that runs operations one by one; "
                  "use bf16 with xla",
                  Precision, Backend>;

/// What is offloaded are shards; a backend that holds whole tensors has nothing to move them with.
template <class Placement, class Backend>
concept OffloadsStateOn =
    !Placement::offloads_optimizer_state || Backend::shards_optimizer_state || Backend::lazy ||
    detail::unmet<"accel: offload<optimizer_state> needs a backend that shards it; "
                  "use sharded<zero3>, it works on one process too",
                  Placement, Backend>;

/// With zero1 and zero2 a rank uses all parameters all the time.
template <class Placement, class Backend>
concept OffloadsParametersOn =
    !Placement::offloads_parameters || Backend::shards_parameters || Backend::lazy ||
    detail::unmet<"accel: offload<parameters> needs a backend that shards them; "
                  "use sharded<zero3>, it works on one process too",
                  Placement, Backend>;

/// These four make an Accelerator.
template <class Backend, class Precision, class Accumulation, class Placement>
concept ComposablePolicies =
    BackendPolicy<Backend> && PrecisionPolicy<Precision> && AccumulationPolicy<Accumulation> &&
    PlacementPolicy<Placement> && RecordsOnXla<Backend, Placement> &&
    RunsOnDevice<Placement, Backend> && StaysInGraph<Placement, Backend> &&
    RecomputesOn<Placement, Backend> && ScalesLossOn<Precision, Backend> &&
    OffloadsParametersOn<Placement, Backend> && OffloadsStateOn<Placement, Backend>;

/// Gradients are reduced once, at the end of a window, so that no_sync() has something to leave
/// out. A stage that shards gradients has no whole gradient to add the next one to.
template <class Backend>
concept ReducesOncePerWindow =
    !Backend::shards_gradients ||
    detail::unmet<"accel: no_sync() needs a backend whose ranks hold whole gradients; "
                  "use ddp or sharded<zero1>, or accumulate(), right with every backend",
                  Backend>;

/// A rank without a batch can take part in the reductions of the others where it has a whole model to
/// do it with; a shard is gathered where a forward needs it, which that rank does not run.
template <class Backend>
concept JoinsUnevenInputs =
    (Backend::distributed && !Backend::shards_optimizer_state) ||
    detail::unmet<"accel: join_uneven_inputs() needs a backend whose ranks hold whole models; "
                  "use ddp, or even_batches (the default) or drop_last in the loader",
                  Backend>;

/// Shards that lie elsewhere than on a GPU are not part of this release.
template <class Placement>
concept OffloadsInThisRelease =
    !Placement::offloads_optimizer_state || Placement::device != device_kind::cuda ||
    detail::unmet<"accel: offload<optimizer_state> needs tensors on the CPU in this release; "
                  "use on<cpu, offload<...>>, which keeps them in a file on a disk",
                  Placement>;

/// The engine of lazy backends is part of this release.
template <class Backend>
concept RecordsInThisRelease =
    !Backend::lazy || detail::unmet<"accel: xla needs an engine that this release does not have; "
                                    "use single on<cpu> or on<cuda>",
                                    Backend>;

/// Policies that go together and that this release can also run.
template <class Backend, class Placement>
concept HasEngine = RecordsInThisRelease<Backend> && OffloadsInThisRelease<Placement>;

}  // namespace accel
