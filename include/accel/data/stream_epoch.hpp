// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One iteration over a stream: what loader_epoch.hpp is for a dataset. A round is looked ahead,
// since only the next one tells whether this is the last. stream_loader.hpp makes one a loop.
#pragma once

#include <accel/data/active_loaders.hpp>
#include <accel/data/loader_cursor.hpp>
#include <accel/data/loader_epoch.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/sampler.hpp>
#include <accel/data/stream_feed.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace accel::detail {

template <class Feed>
class StreamEpoch {
  using Turn = typename Feed::Turn;

 public:
  using Batch = typename Feed::Batch;

  /// `make_feed(start)` makes the feed.
  template <class MakeFeed>
  StreamEpoch(const MakeFeed& make_feed, const DataLoaderOptions& options,
              const LoaderPlacement& placement, const RoundPlan& plan,
              std::shared_ptr<LoaderCursor> cursor, std::int64_t skip)
      : device_(placement.device),
        non_blocking_(options.non_blocking && device_ && device_->is_cuda()),
        communicator_(placement.communicator),
        plan_(plan),
        cursor_(std::move(cursor)) {
    auto start = cursor_->start(skip);
    epoch_ = start.epoch;
    yielded_ = start.first_batch;
    over_ = start.at_end;
    // A resumed epoch made its draw before the state was saved.
    if (!start.resumed) draw_base_seed();
    iteration_.emplace(placement.active_loaders, -1, plan_.total_batch_size());
    if (!over_) {
      feed_ = make_feed(StreamStart{.epoch = start.epoch,
                                    .first_round = start.first_batch,
                                    .state = std::move(start.stream),
                                    .state_rounds = start.stream_batches});
      next_ = feed_->next();
    }
    advance();
  }

  [[nodiscard]] bool done() const noexcept { return !batch_.has_value(); }

  [[nodiscard]] Batch& batch() noexcept { return *batch_; }

  void advance() {
    batch_.reset();
    try {
      if (over_ || !hand_out()) {
        cursor_->finished(epoch_);
        close();
      }
    } catch (const std::exception& problem) {
      batch_.reset();
      // Where ranks tell each other, all of them know; else this one alone stops.
      if (feed_ && !feed_->exchanges()) communicator_.leave_word(problem.what());
      close();
      throw;
    }
  }

 private:
  /// Makes `next_` the batch of the loop, if there is one, and looks for what comes behind it.
  bool hand_out() {
    Turn turn = std::exchange(next_, Turn{});
    if (turn.facts.failure) std::rethrow_exception(turn.facts.failure);
    if (!plan_.exists(turn.facts.found)) return false;
    const bool is_full =
        std::accumulate(turn.facts.found.begin(), turn.facts.found.end(), std::int64_t{0}) ==
        plan_.read_size() * std::ssize(turn.facts.found);
    // Behind a round that lacks samples there is none, unless each rank has its own stream.
    if (is_full || plan_.options().already_sharded) next_ = feed_->next();
    over_ = !next_.facts.failure && !(plan_.exists(next_.facts.found) && next_.batch);
    if (!turn.batch) return false;

    batch_.emplace(std::move(*turn.batch));
    if (device_)
      transform_tensors(*batch_, [&](const at::Tensor& tensor) {
        return to_device(tensor, *device_, non_blocking_);
      });
    cursor_->yielded(++yielded_, std::move(turn.facts.state));
    announce(turn.facts.found, is_full);
    return true;
  }

  /// Tells who asks what this batch is: the last one, or of a round that lacks samples.
  void announce(const std::vector<std::int64_t>& found, bool is_full) {
    const auto real = std::accumulate(found.begin(), found.end(), std::int64_t{0});
    std::int64_t remainder = -1;
    std::vector<RoundShare> shares;
    // Ranks that do not tell each other what they find in streams of their own know nothing of the
    // round but their part, and no part has repeats.
    const bool knows_round =
        !plan_.options().already_sharded || std::ssize(found) == plan_.options().num_processes;
    if (over_ && knows_round && !plan_.options().drop_last)
      remainder = real % plan_.total_batch_size();
    if (!is_full && knows_round) shares = plan_.shares(found);
    iteration_->reached_round(std::move(shares), remainder);
    if (!over_) return;
    iteration_->reached_last_batch();
    cursor_->reached_end((yielded_ - 1) * plan_.total_batch_size() + real);
  }

  void close() noexcept {
    feed_.reset();
    next_ = Turn{};
    iteration_.reset();
  }

  std::optional<c10::Device> device_;
  bool non_blocking_;
  Communicator communicator_;
  RoundPlan plan_;
  std::shared_ptr<LoaderCursor> cursor_;
  std::int64_t epoch_ = 0;
  std::int64_t yielded_ = 0;
  bool over_ = false;  // the batch that the loop has is the last one
  std::optional<ActiveLoaders::Iteration> iteration_;
  std::unique_ptr<Feed> feed_;
  Turn next_;
  std::optional<Batch> batch_;
};

}  // namespace accel::detail
