// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a loader stands: epoch, batches handed out, seed of the order; what a checkpoint keeps of
// it. Knows no dataset and no batch, so that one kind of object serves every loader.
// data_loader.hpp moves it; needs no LibTorch.
#pragma once

#include <accel/data/index_plan.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace accel {

/// What has to be kept so that an interrupted epoch goes on with the very samples it would have
/// had.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batches_yielded =
      0;                     ///< of this rank in this epoch, the one being processed included
  std::uint64_t seed = 0;    ///< of the order, before the epoch is added
  std::int64_t samples = 0;  ///< of the dataset; of a stream, -1 until its end was seen
  std::int64_t total_batch_size = 1;  ///< of all ranks together
  std::string stream{};               ///< the stream's own position, in JSON, if it has one
  int ranks = 0;                      ///< where each has its own stream, how many they were

  bool operator==(const LoaderState&) const = default;
};

/// What a position is in: samples with numbers, a stream that is one for all ranks, or one that is
/// this rank's.
enum class LoaderKind { dataset, stream, own_stream };

/// The position of a loader. All of it is the same on every rank, but for the batches of ranks that
/// are not even, and the position of a stream of its own.
class LoaderCursor {
 public:
  /// Of a stream, the plan says no more than the batch sizes.
  LoaderCursor(const IndexPlan& plan, std::uint64_t seed, LoaderKind kind = LoaderKind::dataset)
      : plan_(plan), seed_(seed), kind_(kind) {}

  [[nodiscard]] LoaderKind kind() const noexcept { return kind_; }

  [[nodiscard]] const IndexPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// The epoch that is running, or the next one.
  [[nodiscard]] std::int64_t epoch() const noexcept { return epoch_; }

  /// The next iteration is epoch `epoch`. A position that load_state() left in another epoch is
  /// forgotten.
  void set_epoch(std::int64_t epoch);

  /// The dataset has `samples` samples now.
  void resize(std::int64_t samples);

  [[nodiscard]] LoaderState state() const;

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
    bool at_end = false;              ///< a stream has no more batches in this epoch
    std::string stream{};             ///< its own position, if it gave one,
    std::int64_t stream_batches = 0;  ///< behind so many batches
  };
  /// Starts an iteration; `skip` leaves out that many batches of it.
  Start start(std::int64_t skip = 0);
  /// That iteration has failed before it had a batch: the next one starts where it would have.
  void not_started(const Start& start) noexcept {
    resume_ = start.resumed;
    batches_yielded_ = start.resumed ? start.first_batch : 0;
  }

  /// `batches` of `epoch` are handed out.
  void yielded(std::int64_t batches) noexcept { batches_yielded_ = batches; }
  /// The same of a stream, which stands at `stream` now.
  void yielded(std::int64_t batches, std::string stream) noexcept {
    batches_yielded_ = batches;
    stream_ = std::move(stream);
    samples_ = -1;
  }
  /// The last batch of the stream's epoch is handed out: it had `samples` samples.
  void reached_end(std::int64_t samples) noexcept { samples_ = samples; }

  /// All batches of `epoch` were processed: the next iteration is the next epoch, unless
  /// set_epoch() has chosen one.
  void finished(std::int64_t epoch) noexcept;

 private:
  void load_stream_state(const LoaderState& state);

  IndexPlan plan_;
  std::uint64_t seed_;
  LoaderKind kind_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_yielded_ = 0;
  bool resume_ = false;        // the next start() goes on at batches_yielded_
  std::string stream_;         // of a stream: its own position behind them
  std::int64_t samples_ = -1;  // of a stream: of the epoch, once its end was seen
};

}  // namespace accel
