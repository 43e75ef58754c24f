// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of loader_cursor.hpp.
#include <accel/data/loader_cursor.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>
#include <limits>

namespace accel {

namespace {

/// Far enough from the largest integer for the epochs that follow.
constexpr std::int64_t last_epoch = std::numeric_limits<std::int64_t>::max() / 2;

/// The steps of `round` samples in the `seen` samples of a position.
std::int64_t whole_rounds(std::int64_t seen, const LoaderState& state, std::int64_t round) {
  if (seen % round != 0)
    detail::fail(ErrorCategory::checkpoint,
                 "the saved position is {} samples into the epoch ({} steps of {}), which is no "
                 "whole number of the {} samples that a step takes now; resume with a total batch "
                 "size that divides {}",
                 seen, state.batches_yielded, state.total_batch_size, round, seen);
  return seen / round;
}

}  // namespace

void LoaderCursor::set_epoch(std::int64_t epoch) {
  if (epoch < 0 || epoch > last_epoch)
    detail::fail(ErrorCategory::usage, "set_epoch got {}; epochs count from 0 to {}", epoch,
                 last_epoch);
  if (epoch == epoch_ && resume_)
    return;  // the loop of a resumed program names the epoch that it resumes
  epoch_ = epoch;
  batches_yielded_ = 0;
  resume_ = false;
  stream_.clear();
  samples_ = -1;
}

void LoaderCursor::resize(std::int64_t samples) {
  if (samples == plan_.options().samples) return;
  auto options = plan_.options();
  options.samples = samples;
  plan_ = IndexPlan(options);
}

LoaderState LoaderCursor::state() const {
  return {.epoch = epoch_,
          .batches_yielded = batches_yielded_,
          .seed = seed_,
          .samples = kind_ == LoaderKind::dataset ? plan_.options().samples : samples_,
          .total_batch_size = plan_.total_batch_size(),
          .stream = stream_,
          .ranks = kind_ == LoaderKind::own_stream ? plan_.options().num_processes : 0};
}

void LoaderCursor::load_state(const LoaderState& state) {
  using detail::fail;
  const std::int64_t least_samples = kind_ == LoaderKind::dataset ? 0 : -1;
  if (state.epoch < 0 || state.epoch > last_epoch || state.batches_yielded < 0 ||
      state.samples < least_samples || state.total_batch_size < 1)
    fail(ErrorCategory::checkpoint,
         "the saved position of a loader is damaged: epoch {}, batches {}, samples {}, total batch "
         "size {}",
         state.epoch, state.batches_yielded, state.samples, state.total_batch_size);
  if (kind_ != LoaderKind::dataset) return load_stream_state(state);

  std::int64_t batches = state.batches_yielded;
  if (batches > 0) {
    const std::int64_t samples = plan_.options().samples;
    if (state.samples != samples)
      fail(ErrorCategory::checkpoint,
           "the saved position is batch {} of an epoch over {} samples, but the dataset has {} "
           "now; load it with the same dataset, or call set_epoch({}) to begin the next epoch",
           batches, state.samples, samples, state.epoch + 1);
    // Compared by division, since a damaged state must not overflow.
    const std::int64_t round = plan_.total_batch_size();
    if (batches > samples / state.total_batch_size + 1)
      fail(ErrorCategory::checkpoint,
           "the saved position is batch {}, but {} samples have no such batch of {}", batches,
           samples, state.total_batch_size);
    const std::int64_t seen = batches * state.total_batch_size;
    if (seen >= samples) {
      batches = plan_.size();
    } else {
      batches = whole_rounds(seen, state, round);
    }
  }
  epoch_ = state.epoch;
  seed_ = state.seed;
  batches_yielded_ = std::min(batches, plan_.size());
  resume_ = state.batches_yielded > 0;
}

void LoaderCursor::load_stream_state(const LoaderState& state) {
  using detail::fail;
  std::int64_t batches = state.batches_yielded;
  bool at_end = false;
  if (batches > 0) {
    // Far beyond any stream, and far enough from the largest integer: a damaged state must not
    // overflow.
    if (batches > std::numeric_limits<std::int64_t>::max() / 4 / state.total_batch_size)
      fail(ErrorCategory::checkpoint,
           "the saved position of a stream is damaged: batch {} of {} samples", batches,
           state.total_batch_size);
    const int ranks = plan_.options().num_processes;
    if (kind_ == LoaderKind::own_stream &&
        (state.ranks != ranks || state.total_batch_size != plan_.total_batch_size()))
      fail(ErrorCategory::checkpoint,
           "the saved position is in streams of {} ranks (total batch size {}), and there are {} "
           "now (total batch size {}); each rank's stream goes on only with the same, or call "
           "set_epoch({}) to begin the next epoch",
           state.ranks, state.total_batch_size, ranks, plan_.total_batch_size(), state.epoch + 1);
    const std::int64_t seen = batches * state.total_batch_size;
    at_end = state.samples >= 0 && seen >= state.samples;
    if (!at_end) batches = whole_rounds(seen, state, plan_.total_batch_size());
  }
  epoch_ = state.epoch;
  seed_ = state.seed;
  batches_yielded_ = batches;
  resume_ = batches > 0;
  stream_ = resume_ ? state.stream : std::string();
  samples_ = at_end ? state.samples : -1;
}

LoaderCursor::Start LoaderCursor::start(std::int64_t skip) {
  if (skip < 0)
    detail::fail(ErrorCategory::usage, "{} batches cannot be skipped; use 0 or more", skip);
  const bool resumed = resume_;
  const std::int64_t resumed_at = resumed ? batches_yielded_ : 0;
  resume_ = false;
  if (kind_ != LoaderKind::dataset) {
    batches_yielded_ = std::max(resumed_at, skip);
    Start start{.epoch = epoch_, .first_batch = batches_yielded_, .resumed = resumed};
    if (resumed) {
      start.at_end = samples_ >= 0;
      start.stream = stream_;
      start.stream_batches = resumed_at;
    }
    return start;
  }
  // Both count from the start of the epoch: a program that skips what it has seen may have a loader
  // that was resumed there already.
  batches_yielded_ = std::max(resumed_at, std::min(skip, plan_.size()));
  return {.epoch = epoch_, .first_batch = batches_yielded_, .resumed = resumed};
}

void LoaderCursor::finished(std::int64_t epoch) noexcept {
  if (epoch_ == epoch) ++epoch_;
  batches_yielded_ = 0;
  stream_.clear();
  samples_ = -1;
}

}  // namespace accel
