// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a strategy asks of each rank, from the facts of its policies: at rest, between two
// steps, and what a step adds. The formulas are those of the ZeRO paper (Rajbhandari et al., 2020,
// section 5), with fp32 for its 16-bit; docs/sharding.md explains them, and the test
// distributed.memory holds them to what LibTorch's allocator was asked for. Activations depend on the
// batch and not on the strategy: engine/activation_memory.hpp measures them. Needs no LibTorch.
#pragma once

#include <accel/policy/backend.hpp>
#include <accel/policy/placement.hpp>
#include <accel/policy/precision.hpp>

#include <cstdint>
#include <utility>

namespace accel {

/// A model, in numbers of elements.
struct ModelSize {
  std::int64_t parameters = 0;
  std::int64_t largest_unit = 0;  ///< parameters of it (units.hpp)
};

/// What the bytes depend on besides model and policies.
struct JobSize {
  std::int64_t num_processes = 1;
  std::int64_t group_size = 0;  ///< ranks of a group of hybrid<...>; 0: all
  std::int64_t micro_batches = 1;
  /// Numbers that the optimizer keeps for a parameter: 2 of Adam and AdamW, 1 of SGD with momentum,
  /// Adagrad and RMSprop, 0 of plain SGD.
  std::int64_t optimizer_numbers = 2;
  std::int64_t activations = 0;  ///< bytes, of a micro-batch of one process, as they are computed
};

/// Bytes of one rank.
struct RankMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer_state = 0;  ///< with the fp32 copies of 16-bit parameters that are whole
  double in_step = 0;          ///< units that are whole for a while, gradients that travel
  double activations = 0;      ///< as JobSize has them
  double offloaded = 0;        ///< what waits elsewhere: not in memory but for a moment
  [[nodiscard]] constexpr double at_rest() const {
    return parameters + gradients + optimizer_state;
  }
  [[nodiscard]] constexpr double peak() const { return at_rest() + in_step + activations; }
};

namespace detail {

constexpr double element_bytes(element_type type) {
  return type == element_type::float64 ? 8 : is_16_bit(type) ? 2 : 4;
}

}  // namespace detail

/// What `Backend`, `Precision` and the offload of `Placement` ask of each rank, but for padding (less
/// than 16 elements a parameter and 16 a rank and unit) and small change. Units are taken to be of one
/// size: where one is much larger than the rest (an output layer), a step takes up to a third less than
/// `peak()` says. For collectives over shared memory, a unit less in a step, and 3 MiB of slots: it
/// counts what Gloo receives.
template <BackendPolicy Backend, PrecisionPolicy Precision, PlacementPolicy Placement = on<cpu>>
constexpr RankMemory rank_memory(const ModelSize& model, const JobSize& job) {
  constexpr bool shards = Backend::shards_optimizer_state;
  constexpr double value = detail::element_bytes(Precision::parameter_type);
  // Of a number that the optimizer steps, or keeps.
  constexpr double stepped = Precision::master_weights ? 4 : value;
  constexpr double gradient = shards ? stepped : value;
  const auto all = static_cast<double>(model.parameters);
  const auto unit = static_cast<double>(model.largest_unit);
  const auto group = Backend::hybrid && job.group_size > 0 ? job.group_size : job.num_processes;
  const double part = shards ? all / static_cast<double>(group) : all;

  RankMemory memory;
  memory.activations = static_cast<double>(job.activations);
  memory.parameters = Backend::shards_parameters ? stepped * part : value * all;
  memory.gradients = gradient * part;
  memory.optimizer_state = stepped * static_cast<double>(job.optimizer_numbers) * part;
  if (Precision::master_weights && !Backend::shards_parameters)
    memory.optimizer_state += stepped * part;

  if (Placement::offloads_optimizer_state)
    memory.offloaded += std::exchange(memory.optimizer_state, 0.0);
  if (Placement::offloads_activations) memory.offloaded += std::exchange(memory.activations, 0.0);
  if (Placement::offloads_parameters) memory.offloaded += std::exchange(memory.parameters, 0.0);

  if (Backend::shards_parameters)
    memory.in_step += value * (detail::reshards_after_forward<Backend>() ? 2 * unit : all);
  // A gradient that has come, a unit's that are being filled; one's that travel, and are received.
  if (shards) memory.in_step += 2 * (value + detail::element_bytes(Precision::reduce_type)) * unit;
  if (shards && !Backend::shards_gradients && job.micro_batches > 1)
    memory.in_step += gradient * all;
  // Gradients in the type of the fp32 copies, while these are stepped.
  if (!shards && Precision::master_weights) memory.in_step += stepped * all;
  // The 16-bit copies of weights that autocast keeps for backward.
  if (Precision::compute_type != Precision::parameter_type)
    memory.in_step += detail::element_bytes(Precision::compute_type) * all;
  return memory;
}

}  // namespace accel
