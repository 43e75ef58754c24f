// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a loader stands: epoch, batches handed out, seed of the order; what a checkpoint keeps of
// it. Knows no dataset and no batch, so that one kind of object serves every loader.
// data_loader.hpp moves it; needs no LibTorch.
#pragma once

#include <accel/data/index_plan.hpp>

#include <cstdint>

namespace accel {

/// What has to be kept so that an interrupted epoch goes on with the very samples it would have
/// had.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batches_yielded =
      0;                     ///< of this rank in this epoch, the one being processed included
  std::uint64_t seed = 0;    ///< of the order, before the epoch is added
  std::int64_t samples = 0;  ///< of the dataset
  std::int64_t total_batch_size = 1;  ///< of all ranks together

  bool operator==(const LoaderState&) const = default;
};

/// The position of a loader. All of it is the same on every rank, but for the batches of ranks that
/// are not even.
class LoaderCursor {
 public:
  LoaderCursor(const IndexPlan& plan, std::uint64_t seed) : plan_(plan), seed_(seed) {}

  [[nodiscard]] const IndexPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// The epoch that is running, or the next one.
  [[nodiscard]] std::int64_t epoch() const noexcept { return epoch_; }

  /// The next iteration is epoch `epoch`. A position that load_state() left in another epoch is
  /// forgotten.
  void set_epoch(std::int64_t epoch);

  /// The dataset has `samples` samples now.
  void resize(std::int64_t samples);

  [[nodiscard]] LoaderState state() const noexcept;

  /// The next iteration goes on behind the last batch of `state`. Another number of ranks, or
  /// another batch size, is fine where the position is a whole number of its rounds. Throws
  /// Error(checkpoint) that names both where it is not, or where the dataset has another size in
  /// mid-epoch.
  void load_state(const LoaderState& state);

  /// Where an iteration starts.
  struct Start {
    std::int64_t epoch;
    std::int64_t first_batch;
    bool
        resumed;  ///< goes on with an epoch whose random draws were made before the state was saved
  };
  /// Starts an iteration; `skip` leaves out that many batches of it.
  Start start(std::int64_t skip = 0);

  /// `batches` of `epoch` are handed out.
  void yielded(std::int64_t batches) noexcept { batches_yielded_ = batches; }

  /// All batches of `epoch` were processed: the next iteration is the next epoch, unless
  /// set_epoch() has chosen one.
  void finished(std::int64_t epoch) noexcept;

 private:
  IndexPlan plan_;
  std::uint64_t seed_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_yielded_ = 0;
  bool resume_ = false;  // the next start() goes on at batches_yielded_
};

}  // namespace accel
