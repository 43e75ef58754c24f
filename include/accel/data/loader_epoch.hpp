// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One iteration over a loader, from begin() to the end of the loop: the order, the batches read
// ahead, the batch that the loop body has. Everything ends with it, however the loop is left.
// loader.hpp makes one a loop.
#pragma once

#include <accel/data/active_loaders.hpp>
#include <accel/data/batch_reader.hpp>
#include <accel/data/loader_cursor.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/prefetcher.hpp>
#include <accel/data/sampler.hpp>
#include <accel/data/samplers.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace accel::detail {

/// Keeps the number of threads that operators of this thread, and of threads started later, use. A
/// loader's threads set their own to 1, and LibTorch would take that number for every thread that
/// has not run a parallel operator yet.
class IntraopThreads {
 public:
  IntraopThreads();
  ~IntraopThreads();
  IntraopThreads(const IntraopThreads&) = delete;
  IntraopThreads& operator=(const IntraopThreads&) = delete;

  /// For a thread of a loader: many of them run at once.
  static void use_one_here() noexcept;

 private:
  int count_;
};

/// In debug mode: compares that every rank begins a loop, and runs `make_order`, whose failure on one
/// of them all are told; then, that they are about to visit samples in the same order, which a
/// sampler may compute from anything. Throw Error(collective) on every rank. Every rank must call
/// these.
void compare_loops(const Communicator& communicator, const std::function<void()>& make_order);
void compare_orders(const Communicator& communicator, const SampleOrder& order, std::int64_t epoch);

template <class Reader>
class LoaderEpoch {
 public:
  using Batch = typename Reader::Batch;

  LoaderEpoch(const Reader& reader, const DataLoaderOptions& options, const AnySampler& sampler,
              const LoaderPlacement& placement, std::shared_ptr<LoaderCursor> cursor,
              std::int64_t skip)
      : reader_(reader),
        device_(placement.device),
        non_blocking_(options.non_blocking && device_ && device_->is_cuda()),
        communicator_(placement.communicator),
        cursor_(std::move(cursor)),
        plan_(cursor_->plan()),
        start_(cursor_->start(skip)),
        next_(start_.first_batch) {
    // A resumed epoch made its draw before the state was saved.
    if (!start_.resumed) draw_base_seed();
    const auto make_order = [&] {
      const auto samples = plan_.options().samples;
      if (sampler.gives_batches()) {
        batches_ = checked_batches(sampler.batches(start_.epoch, cursor_->seed()), samples,
                                   dataset_size(*reader_.dataset()));
        order_.emplace(samples, /*shuffle=*/false, cursor_->seed(), start_.epoch);
      } else if (sampler)
        order_.emplace(checked_order(sampler.order(start_.epoch, cursor_->seed()), samples,
                                     dataset_size(*reader_.dataset())));
      else
        order_.emplace(samples, options.shuffle, cursor_->seed(), start_.epoch);
    };
    try {
      // Where loops may end apart, they may begin apart too.
      if (communicator_.debugging() && !placement.allow_uneven_batches) {
        compare_loops(communicator_, make_order);
        if (sampler.gives_batches())
          compare_orders(communicator_, as_order(batches_).order(), start_.epoch);
        else
          compare_orders(communicator_, order_->order(), start_.epoch);
      } else {
        make_order();
      }
    } catch (const std::exception& problem) {
      cursor_->not_started(start_);
      communicator_.leave_word(problem.what());  // nothing else tells the ranks that will wait
      throw;
    }
    // Without even_batches nothing is repeated, and ranks end apart.
    const bool repeats = plan_.options().even_batches;
    iteration_.emplace(placement.active_loaders, repeats ? plan_.remainder() : -1,
                       plan_.total_batch_size());
    if (options.num_workers > 0 && next_ < plan_.size()) start_prefetching(options);
    advance();
  }

  [[nodiscard]] bool done() const noexcept { return !batch_.has_value(); }

  [[nodiscard]] Batch& batch() noexcept { return *batch_; }

  /// Replaces the batch by the next one. The number of batches is known, so the last one is
  /// announced without another being read ahead.
  void advance() {
    batch_.reset();  // before the next one is made: two need not fit into memory
    if (next_ == plan_.size()) {
      cursor_->finished(start_.epoch);
      return close();
    }
    try {
      batch_.emplace(prefetcher_ ? prefetcher_->next() : make(reader_, next_));
      if (device_)
        transform_tensors(*batch_, [&](const at::Tensor& tensor) {
          return to_device(tensor, *device_, non_blocking_);
        });
    } catch (const std::exception& problem) {
      batch_.reset();
      close();
      communicator_.leave_word(problem.what());  // nothing else tells the ranks that will wait
      throw;
    }
    cursor_->yielded(++next_);
    if (next_ != plan_.size()) return;
    const auto& options = plan_.options();
    if (!batches_.empty() && options.even_batches && !options.drop_last)
      iteration_->reached_round(shares_of_round(batches_, next_ - 1, options.num_processes), -1);
    iteration_->reached_last_batch();
  }

 private:
  [[nodiscard]] Batch make(Reader& reader, std::int64_t number) const {
    const auto indices = plan_.indices(number, order_->order());
    auto batch = reader.read(batches_.empty() ? indices : batches_[indices.front()]);
    if (non_blocking_) transform_tensors(batch, to_pinned_memory);
    return batch;
  }

  void start_prefetching(const DataLoaderOptions& options) {
    if constexpr (Reader::can_be_cloned) {
      auto readers = std::make_shared<std::vector<Reader>>();
      for (int worker = 0; worker < options.num_workers; ++worker)
        readers->push_back(reader_.clone());
      const IntraopThreads keep;
      prefetcher_.emplace(
          PrefetchRange{.first = next_,
                        .last = plan_.size(),
                        .workers = options.num_workers,
                        .capacity = options.num_workers * options.prefetch_factor},
          [this, readers](int worker, std::int64_t number) {
            return make((*readers)[static_cast<std::size_t>(worker)], number);
          },
          IntraopThreads::use_one_here);
    }
  }

  void close() noexcept {
    prefetcher_.reset();
    iteration_.reset();
  }

  Reader reader_;
  std::optional<c10::Device> device_;
  bool non_blocking_;
  Communicator communicator_;
  std::shared_ptr<LoaderCursor> cursor_;
  IndexPlan plan_;
  LoaderCursor::Start start_;
  std::int64_t next_;  // the batch after the current one
  std::optional<EpochOrder> order_;
  EpochBatches batches_;  // where a sampler gives batches: order_ is of these
  std::optional<ActiveLoaders::Iteration> iteration_;
  std::optional<Batch> batch_;
  std::optional<Prefetcher<Batch>> prefetcher_;  // last: its threads use what stands above
};

/// Walks one epoch. Moves, and does not copy: it is the owner.
template <class Epoch>
class BatchIterator {
 public:
  using value_type = typename Epoch::Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  explicit BatchIterator(std::unique_ptr<Epoch> epoch) : epoch_(std::move(epoch)) {}

  value_type& operator*() const noexcept { return epoch_->batch(); }
  value_type* operator->() const noexcept { return &epoch_->batch(); }
  BatchIterator& operator++() {
    epoch_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }

  friend bool operator==(const BatchIterator& iterator, std::default_sentinel_t) noexcept {
    return iterator.epoch_->done();
  }

 private:
  std::unique_ptr<Epoch> epoch_;
};

}  // namespace accel::detail
