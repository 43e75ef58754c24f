// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Who gets which samples of a round of a stream, as arithmetic: a stream's length is not known, so
// that there is a plan of a round and none of an epoch (index_plan.hpp has that one, for datasets).
// stream_feed.hpp reads rounds and asks this. Needs no LibTorch.
//
//     7 samples, batch_size 2, 2 ranks      round 0   round 1
//       rank 0                                0 1       4 5
//       rank 1                                2 3       6 0     even_batches starts over
//
// A round that rank 0 deals out (dispatch) is cut as evenly as can be, since the cut is made when
// its length is known: 10 samples give 8 to rank 0 and 9 to rank 1 in the last round, where ranks
// that read for themselves have 8 9 and 0 1.
#pragma once

#include <cstdint>
#include <vector>

namespace accel {

/// How the rounds of a stream are dealt out. Every rank has the same values.
struct RoundPlanOptions {
  std::int64_t batch_size = 1;  ///< of one rank; with `split_batches`, of all ranks together
  int num_processes = 1;
  bool drop_last = false;        ///< leave the last round out if it lacks samples
  bool even_batches = true;      ///< fill the last round with the epoch's first samples
  bool split_batches = false;    ///< cut one batch into slices; else each rank has its own
  bool dispatch = false;         ///< rank 0 reads and deals out
  bool already_sharded = false;  ///< each rank's stream is its own share
};

/// The part of one rank in a round: the places [first, first + given) of it, of which the first
/// `real` hold samples of the round and the others repeats.
struct RoundShare {
  std::int64_t first = 0;
  std::int64_t given = 0;
  std::int64_t real = 0;

  bool operator==(const RoundShare&) const = default;
};

/// The shares of all ranks in any round of a stream. With one process nothing is ever repeated.
class RoundPlan {
 public:
  /// Throws Error(config) that names the value that cannot be.
  explicit RoundPlan(const RoundPlanOptions& options);

  /// Samples of one rank in a full round.
  [[nodiscard]] std::int64_t slice() const noexcept { return slice_; }

  /// Samples in a full round: what all ranks together take in a step.
  [[nodiscard]] std::int64_t total_batch_size() const noexcept {
    return slice_ * options_.num_processes;
  }

  /// Samples that a process that reads takes from its stream for a round.
  [[nodiscard]] std::int64_t read_size() const noexcept {
    return options_.already_sharded ? slice_ : total_batch_size();
  }

  /// Whether a round that lacks samples is filled up with repeats.
  [[nodiscard]] bool fills() const noexcept {
    return options_.even_batches && !options_.drop_last && options_.num_processes > 1;
  }

  /// Whether there is a round for which the processes that read have found that many samples:
  /// `found` has one number, or with `already_sharded` one for each rank; for a rank that does not
  /// know of the others, its own.
  [[nodiscard]] bool exists(const std::vector<std::int64_t>& found) const noexcept;

  /// What each rank gets of that round, where what all of them have found is known.
  [[nodiscard]] std::vector<RoundShare> shares(const std::vector<std::int64_t>& found) const;

  /// Batches that a rank gets of a stream of `samples`; of all of it, or with `already_sharded` of
  /// the part of each rank, if their parts are equal.
  [[nodiscard]] std::int64_t batches(std::int64_t samples, int rank) const;

  [[nodiscard]] const RoundPlanOptions& options() const noexcept { return options_; }

 private:
  RoundPlanOptions options_;
  std::int64_t slice_ = 1;
};

/// Where the repeat at place `place` of a round with `real` samples comes from: the number of a
/// sample of the epoch, of which the first `first_samples` are known.
[[nodiscard]] constexpr std::int64_t repeat_at(std::int64_t place, std::int64_t real,
                                               std::int64_t first_samples) noexcept {
  return (place - real) % first_samples;
}

}  // namespace accel
