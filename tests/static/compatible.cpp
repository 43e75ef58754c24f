// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The rules between axes, one pair that each lets be and one that it refuses, and the head of a
// class template that names the composed concept as Accelerator does. The whole table is proved in
// accel/policy/matrix.hpp.

#include "archetype.hpp"

#include <accel/policies.hpp>

namespace accel::testing {
namespace {

using offload_state = on<cuda, offload<optimizer_state>>;
using offload_both = on<cuda, offload<optimizer_state, parameters>>;

static_assert(RecordsOnXla<xla, on<xla_device>> && RecordsOnXla<ddp, on<cpu>>);
static_assert(!RecordsOnXla<xla, on<cpu>> && !RecordsOnXla<xla, on<automatic>>);
static_assert(!RecordsOnXla<xla, on<cuda>>);

static_assert(RunsOnDevice<on<xla_device>, xla> && RunsOnDevice<on<cuda>, single>);
static_assert(!RunsOnDevice<on<xla_device>, single> && !RunsOnDevice<on<xla_device>, ddp>);
static_assert(!RunsOnDevice<on<xla_device>, full_shard>);

static_assert(StaysInGraph<on<xla_device>, xla> && StaysInGraph<offload_both, full_shard>);
static_assert(!StaysInGraph<on<xla_device, offload<optimizer_state>>, xla>);
static_assert(!StaysInGraph<on<xla_device, offload<optimizer_state, parameters>>, xla>);

static_assert(RecomputesOn<on<cpu, recomputed<>>, single> && RecomputesOn<on<xla_device>, xla>);
static_assert(!RecomputesOn<on<xla_device, recomputed<>>, xla>);

static_assert(ScalesLossOn<fp16, single> && ScalesLossOn<bf16, xla>);
static_assert(!ScalesLossOn<fp16, xla>);

static_assert(OffloadsStateOn<offload_state, sharded<zero1>> && OffloadsStateOn<on<cpu>, ddp>);
static_assert(!OffloadsStateOn<offload_state, single> && !OffloadsStateOn<offload_state, ddp>);

static_assert(OffloadsParametersOn<offload_both, sharded<zero3>>);
static_assert(OffloadsParametersOn<offload_both, shard_grad_op>);
static_assert(OffloadsParametersOn<offload_state, single>);
static_assert(!OffloadsParametersOn<offload_both, sharded<zero2>>);
static_assert(!OffloadsParametersOn<offload_both, sharded<hybrid<zero2>>>);

static_assert(ReducesOncePerWindow<single> && ReducesOncePerWindow<ddp>);
static_assert(ReducesOncePerWindow<sharded<zero1>> && ReducesOncePerWindow<xla>);
static_assert(!ReducesOncePerWindow<sharded<zero2>> && !ReducesOncePerWindow<sharded<zero3>>);
static_assert(!ReducesOncePerWindow<shard_grad_op> && !ReducesOncePerWindow<hybrid_shard>);

// A policy in the place of another axis, or a type that is none.
static_assert(ComposablePolicies<ddp, bf16, accumulate<4>, on<cpu>>);
static_assert(!ComposablePolicies<bf16, ddp, accumulate<4>, on<cpu>>);
static_assert(!ComposablePolicies<ddp, bf16, on<cpu>, accumulate<4>>);
static_assert(!ComposablePolicies<ddp, bf16, accumulate<4>, cpu>);
static_assert(!ComposablePolicies<int, bf16, accumulate<4>, on<cpu>>);
static_assert(!ComposablePolicies<ddp, int, accumulate<4>, on<cpu>>);
static_assert(!ComposablePolicies<ddp, bf16, int, on<cpu>>);
static_assert(!ComposablePolicies<ddp, bf16, accumulate<4>, int>);
static_assert(!ComposablePolicies<full_shard, bf16, accumulate<4>, on<cuda, offload<parameters>>>);

// The class head.
template <BackendPolicy Backend = single, PrecisionPolicy Precision = fp32,
          AccumulationPolicy Accumulation = accumulate<1>,
          PlacementPolicy Placement = on<automatic>>
  requires ComposablePolicies<Backend, Precision, Accumulation, Placement>
class Head {};
static_assert(Accepts<Head>);
static_assert(Accepts<Head, ddp>);
static_assert(Accepts<Head, ddp, fp16, accumulate<dynamic>, on<cuda>>);
static_assert(Accepts<Head, full_shard, fp32, accumulate<1>, offload_both>);
static_assert(Accepts<Head, xla, bf16, accumulate<1>, on<xla_device>>);
static_assert(!Accepts<Head, ddp, fp32, accumulate<1>, offload_state>);
static_assert(!Accepts<Head, sharded<zero2>, fp32, accumulate<1>, offload_both>);
static_assert(!Accepts<Head, full_shard, fp32, accumulate<1>, on<cuda, offload<parameters>>>);
static_assert(!Accepts<Head, xla>);
static_assert(!Accepts<Head, xla, fp32, accumulate<1>, on<cpu>>);
static_assert(!Accepts<Head, xla, fp16, accumulate<1>, on<xla_device>>);
static_assert(!Accepts<Head, xla, fp32, accumulate<1>, on<xla_device, recomputed<>>>);
static_assert(!Accepts<Head, xla, fp32, accumulate<1>, on<xla_device, offload<optimizer_state>>>);
static_assert(!Accepts<Head, single, fp32, accumulate<1>, on<xla_device>>);
static_assert(!Accepts<Head, fp32>);

// A member that is there for some backends only.
template <class Backend>
struct Member {
  void no_sync()
    requires ReducesOncePerWindow<Backend>
  {}
};
template <class Backend>
concept HasNoSync = requires(Member<Backend> member) { member.no_sync(); };
static_assert(HasNoSync<ddp> && HasNoSync<sharded<zero1>>);
static_assert(!HasNoSync<sharded<zero2>> && !HasNoSync<full_shard>);

// What this release runs.
static_assert(HasEngine<single, on<automatic>> && HasEngine<ddp, on<cuda>>);
static_assert(HasEngine<sharded<zero1>, on<cpu>> && HasEngine<hybrid_shard, on<cuda>>);
static_assert(HasEngine<full_shard, on<cpu, offload<optimizer_state>>>);
static_assert(HasEngine<full_shard, on<automatic, offload<optimizer_state, parameters>>>);
static_assert(!HasEngine<full_shard, on<cuda, offload<optimizer_state>>>);
static_assert(HasEngine<single, on<cuda, offload<activations>>>);
static_assert(!HasEngine<xla, on<xla_device>>);
static_assert(HasEngine<single, on<cpu, recomputed<>>> && HasEngine<ddp, on<cuda, recomputed<>>>);

}  // namespace
}  // namespace accel::testing
