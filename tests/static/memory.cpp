// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes of each strategy, against the sums that docs/sharding.md states. distributed.memory has
// the same formulas measured.

#include <accel/policy/memory.hpp>

namespace accel::testing {
namespace {

constexpr std::int64_t count = 1000, ranks = 8;
constexpr double whole = count, shard = whole / ranks;

template <class Backend, class Precision = fp32>
constexpr RankMemory of(JobSize job = {}) {
  job.num_processes = ranks;
  return rank_memory<Backend, Precision>({.parameters = count, .largest_unit = 10}, job);
}

static_assert(of<ddp>().at_rest() == 16 * whole && of<ddp>().in_step == 0);
static_assert(of<sharded<zero1>>().at_rest() == 4 * whole + 12 * shard);
static_assert(of<sharded<zero2>>().at_rest() == 4 * whole + 12 * shard);
static_assert(of<sharded<zero3>>().at_rest() == 16 * shard);
static_assert(of<shard_grad_op>().at_rest() == 16 * shard);

// With fp32 masters.
static_assert(of<ddp, with_masters<bf16_true>>().at_rest() == (2 + 2 + 12) * whole);
static_assert(of<ddp, with_masters<bf16_true>>().in_step == 4 * whole);
static_assert(of<sharded<zero2>, with_masters<bf16_true>>().at_rest() == 2 * whole + 16 * shard);
static_assert(of<sharded<zero3>, with_masters<bf16_true>>().at_rest() == 16 * shard);
static_assert(of<sharded<zero3>, bf16_true>().at_rest() == 8 * shard);

// Groups share among fewer.
static_assert(of<hybrid_shard>({.group_size = 2}).at_rest() == 8 * whole);
static_assert(of<hybrid_shard>().at_rest() == of<full_shard>().at_rest());
static_assert(of<full_shard>({.group_size = 2}).at_rest() == of<full_shard>().at_rest());

// In a step.
static_assert(of<sharded<zero3>, bf16_true>().in_step == (2 * 2 + 4 * 2) * 10);
static_assert(of<sharded<zero3>>().in_step == 4 * (2 + 4) * 10);
static_assert(rank_memory<sharded<zero3>, fp32, on<cpu, offload<optimizer_state>>>({80, 10}, {4})
                  .offloaded == 2 * 4 * 20);
static_assert(of<shard_grad_op>().in_step == 4 * whole + 4 * 4 * 10);
static_assert(of<sharded<zero1>>({.micro_batches = 4}).in_step == 4 * 4 * 10 + 4 * whole);
static_assert(of<sharded<zero2>>({.micro_batches = 4}).in_step == 4 * 4 * 10);
static_assert(of<ddp, bf16>().in_step == 2 * whole);

// Activations are the same for all.
static_assert(of<ddp>({.activations = 7}).peak() == 16 * whole + 7);
static_assert(of<sharded<zero3>>({.activations = 7}).peak() == of<sharded<zero3>>().peak() + 7);
static_assert(of<ddp>({.activations = 7}).at_rest() == 16 * whole);
static_assert(rank_memory<ddp, fp32, on<cpu, offload<activations>>>({10, 10}, {.activations = 7})
                  .offloaded == 7);

// Other optimizers.
static_assert(of<ddp>({.optimizer_numbers = 0}).at_rest() == 8 * whole);
static_assert(of<sharded<zero1>>({.optimizer_numbers = 1}).optimizer_state == 4 * shard);

}  // namespace
}  // namespace accel::testing
