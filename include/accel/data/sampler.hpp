// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which an epoch visits the samples, from the same random draws as Accelerate's
// seedable sampler, so that a program in either language sees the same batches. Comes before
// index_plan.hpp, which cuts the order into batches.
#pragma once

#include <accel/data/index_plan.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace accel {

/// What a loader without a `data_seed` takes: the seed that the default CPU generator was given
/// (torch::manual_seed).
[[nodiscard]] std::uint64_t default_data_seed();

/// The order of one epoch; owns its permutation.
class EpochOrder {
 public:
  /// 0 .. samples - 1, or shuffled: the permutation depends on `seed + epoch` only, on every
  /// machine. Draws nothing from the default generator.
  EpochOrder(std::int64_t samples, bool shuffle, std::uint64_t seed, std::int64_t epoch);

  /// These numbers.
  explicit EpochOrder(std::vector<std::int64_t> order);

  /// Valid as long as this object.
  [[nodiscard]] SampleOrder order() const;

 private:
  std::int64_t samples_;
  at::Tensor permutation_;           // undefined where the order is not shuffled
  std::vector<std::int64_t> given_;  // by a sampler
  bool is_given_ = false;
};

namespace detail {

/// The draw that Python's DataLoader makes from the default CPU generator when an epoch starts,
/// shuffled or not (it seeds its worker processes). Made and thrown away, so that what the program
/// draws next is the same as in Python.
void draw_base_seed();

}  // namespace detail
}  // namespace accel
