// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What DataLoader (as the user makes it) and PreparedDataLoader (as an accelerator places it) have
// in common: the range of batches, its length, epochs, and the position that a checkpoint keeps.
#pragma once

#include <accel/data/batch_reader.hpp>
#include <accel/data/loader_cursor.hpp>
#include <accel/data/loader_epoch.hpp>
#include <accel/data/loader_options.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

namespace accel::detail {

/// A range of batches that can be walked once an epoch. Copies share dataset and position.
template <MapDataset Dataset, CollateFor<Dataset> Collate>
class Loader {
  using Reader = BatchReader<Dataset, Collate>;

 public:
  using Batch = typename Reader::Batch;
  using iterator = BatchIterator<LoaderEpoch<Reader>>;

  /// The rest of an epoch: what skip_first_batches() returns.
  class Rest {
   public:
    [[nodiscard]] iterator begin() const { return loader_.iterate(skip_); }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
    /// Batches that iteration yields.
    [[nodiscard]] std::int64_t size() const {
      return std::max<std::int64_t>(0, loader_.size() - skip_);
    }

   private:
    friend class Loader;
    Rest(const Loader& loader, std::int64_t skip) : loader_(loader), skip_(skip) {}
    Loader loader_;
    std::int64_t skip_;
  };

  /// Starts the epoch epoch(), or goes on with the one that load_state() left off in. One draw is
  /// made from the default CPU generator when an epoch starts, as Python's DataLoader does; none
  /// when it goes on. An iteration that is left early leaves the epoch unfinished: the next one
  /// starts it again.
  [[nodiscard]] iterator begin() const { return iterate(0); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

  /// Batches that this rank gets in an epoch: what iteration yields, with any options.
  [[nodiscard]] std::int64_t size() const { return plan().size(); }

  /// Samples of an epoch: of the dataset, or those that the sampler visits; of a sampler that gives
  /// batches, how many of these.
  [[nodiscard]] std::int64_t samples() const {
    return sampler_ ? sampler_.size() : dataset_size(dataset());
  }

  /// Samples that all ranks together take in a step; batches, where a sampler gives them.
  [[nodiscard]] std::int64_t total_batch_size() const { return plan().total_batch_size(); }

  /// The epoch that is running, or the next one. Counts up by itself when all batches were
  /// processed.
  [[nodiscard]] std::int64_t epoch() const noexcept { return cursor_->epoch(); }
  /// The next iteration is epoch `epoch`.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }

  /// A range of the next epoch's batches without its first `batches`. This loader stays whole.
  [[nodiscard]] Rest skip_first_batches(std::int64_t batches) const {
    if (batches < 0)
      fail(ErrorCategory::usage, "{} batches cannot be skipped; use 0 or more", batches);
    return Rest(*this, batches);
  }

  /// The position, for a checkpoint. In a loop, the batch being processed counts as done.
  [[nodiscard]] LoaderState state() const { return cursor_->state(); }
  /// The next iteration goes on at `state`, with the very samples that it would have had. See
  /// LoaderCursor::load_state.
  void load_state(const LoaderState& state) {
    cursor_->resize(samples());
    cursor_->load_state(state);
  }

  [[nodiscard]] Dataset& dataset() const noexcept { return *reader_.dataset(); }
  [[nodiscard]] const DataLoaderOptions& options() const noexcept { return options_; }

  /// What state() and load_state() act on; an accelerator keeps it without knowing the type of the
  /// dataset.
  [[nodiscard]] const std::shared_ptr<LoaderCursor>& cursor() const noexcept { return cursor_; }

 protected:
  Loader(Reader reader, AnySampler sampler, const DataLoaderOptions& options,
         LoaderPlacement placement)
      : reader_(std::move(reader)),
        sampler_(std::move(sampler)),
        options_(options),
        placement_(std::move(placement)) {
    check_loader_options(options_);
    check_dataset_options(options_);
    if (sampler_) check_sampler_options(options_, sampler_.size(), sampler_.gives_batches());
    if (options_.num_workers > 0 && !Reader::can_be_cloned)
      fail(ErrorCategory::config,
           "num_workers is {}, but the dataset can neither be read through a const reference nor "
           "copied; make its get() or get_batch() const, or use num_workers = 0",
           options_.num_workers);
    cursor_ = std::make_shared<LoaderCursor>(make_plan(options_, placement_, samples()),
                                             choose_seed(options_, placement_));
  }

  [[nodiscard]] const Reader& reader() const noexcept { return reader_; }
  [[nodiscard]] const AnySampler& sampler() const noexcept { return sampler_; }

 private:
  // A dataset may have grown since the last epoch.
  [[nodiscard]] const IndexPlan& plan() const {
    cursor_->resize(samples());
    return cursor_->plan();
  }

  [[nodiscard]] iterator iterate(std::int64_t skip) const {
    static_cast<void>(plan());
    return iterator(std::make_unique<LoaderEpoch<Reader>>(reader_, options_, sampler_, placement_,
                                                          cursor_, skip));
  }

  Reader reader_;
  AnySampler sampler_;
  DataLoaderOptions options_;
  LoaderPlacement placement_;
  std::shared_ptr<LoaderCursor> cursor_;
};

}  // namespace accel::detail
