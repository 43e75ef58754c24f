// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which samples make up which batch of which rank, as arithmetic on positions in an order: no data,
// no communication, no LibTorch, and nothing stored, so that an epoch of a billion samples costs as
// much as one of ten. Every rank computes its own part, and the parts fit. The order itself comes
// from sampler.hpp; data_loader.hpp reads the batches.
//
// A round is one batch on every rank. It covers a run of neighbouring positions, cut into one slice
// a rank:
//
//     10 samples, batch_size 2, 2 ranks     round 0   round 1   round 2
//       rank 0                                0 1       4 5       8 9
//       rank 1                                2 3       6 7       0 1     even_batches starts over
//
// With split_batches, `batch_size` is the size of a whole round; else it is the size of a slice.
// That is all the difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace accel {

/// How an epoch is dealt out to the ranks. Every rank has the same values but for `process_index`.
struct IndexPlanOptions {
  std::int64_t samples = 0;
  std::int64_t batch_size = 1;  ///< of one rank; with `split_batches`, of all ranks together
  int num_processes = 1;
  int process_index = 0;
  bool drop_last = false;      ///< leave the last round out if it lacks samples
  bool even_batches = true;    ///< fill the last round with the epoch's first samples
  bool split_batches = false;  ///< cut one batch into slices; else each rank has its own
};

/// The order in which an epoch visits the samples: 0, 1, 2, ... or a permutation that somebody else
/// owns.
class SampleOrder {
 public:
  /// 0, 1, ..., samples - 1.
  explicit SampleOrder(std::int64_t samples) : samples_(samples) {}
  /// The numbers of `permutation`, which must outlive this object.
  explicit SampleOrder(std::span<const std::int64_t> permutation)
      : samples_(static_cast<std::int64_t>(permutation.size())), permutation_(permutation.data()) {}

  [[nodiscard]] std::int64_t size() const noexcept { return samples_; }
  [[nodiscard]] std::int64_t operator[](std::int64_t position) const noexcept {
    return permutation_ == nullptr ? position : permutation_[position];
  }

 private:
  std::int64_t samples_;
  const std::int64_t* permutation_ = nullptr;
};

/// The batches of one rank in one epoch.
///
/// With `even_batches` or `drop_last` all ranks have equally many batches of equal size. With one
/// process nothing is ever repeated: its last batch is short, or dropped.
class IndexPlan {
 public:
  /// Throws Error(config) that names the value that cannot be.
  explicit IndexPlan(const IndexPlanOptions& options);

  /// Batches that this rank gets: exactly as many as it can ask for.
  [[nodiscard]] std::int64_t size() const noexcept { return batches_; }

  /// The samples of batch `batch` (0 .. size()-1). `order` has as many samples as the plan.
  [[nodiscard]] std::vector<std::size_t> indices(std::int64_t batch,
                                                 const SampleOrder& order) const;

  /// Samples in a full round: what all ranks together take in a step.
  [[nodiscard]] std::int64_t total_batch_size() const noexcept { return round_; }

  /// Samples in the last round that are not repeats, where that round is not a full one; 0 where it
  /// is full (nothing is to be cut from what was gathered); -1 with `drop_last` (the same).
  [[nodiscard]] std::int64_t remainder() const noexcept;

  [[nodiscard]] const IndexPlanOptions& options() const noexcept { return options_; }

 private:
  /// Whether a last round that lacks samples is filled up.
  [[nodiscard]] bool fills_last_round() const noexcept {
    return options_.even_batches && options_.num_processes > 1;
  }

  IndexPlanOptions options_;
  std::int64_t slice_ = 1;  // samples of one rank in a round
  std::int64_t round_ = 1;  // samples of all ranks in a round
  std::int64_t batches_ = 0;
};

}  // namespace accel
