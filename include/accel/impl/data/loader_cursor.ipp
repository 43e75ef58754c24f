// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of loader_cursor.hpp.
#include <accel/data/loader_cursor.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>

namespace accel {

void LoaderCursor::set_epoch(std::int64_t epoch) {
  if (epoch < 0) detail::fail(ErrorCategory::usage, "set_epoch got {}; epochs count from 0", epoch);
  if (epoch == epoch_ && resume_)
    return;  // the loop of a resumed program names the epoch that it resumes
  epoch_ = epoch;
  batches_yielded_ = 0;
  resume_ = false;
}

void LoaderCursor::resize(std::int64_t samples) {
  if (samples == plan_.options().samples) return;
  auto options = plan_.options();
  options.samples = samples;
  plan_ = IndexPlan(options);
}

LoaderState LoaderCursor::state() const noexcept {
  return {.epoch = epoch_,
          .batches_yielded = batches_yielded_,
          .seed = seed_,
          .samples = plan_.options().samples,
          .total_batch_size = plan_.total_batch_size()};
}

void LoaderCursor::load_state(const LoaderState& state) {
  using detail::fail;
  if (state.epoch < 0 || state.batches_yielded < 0 || state.samples < 0 ||
      state.total_batch_size < 1)
    fail(ErrorCategory::checkpoint,
         "the saved position of a loader is damaged: epoch {}, batches {}, samples {}, total batch "
         "size {}",
         state.epoch, state.batches_yielded, state.samples, state.total_batch_size);

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
    } else if (seen % round != 0) {
      fail(ErrorCategory::checkpoint,
           "the saved position is {} samples into the epoch ({} steps of {}), which is no whole "
           "number of the {} samples that a step takes now; resume with a total batch size that "
           "divides {}",
           seen, batches, state.total_batch_size, round, seen);
    } else {
      batches = seen / round;
    }
  }
  epoch_ = state.epoch;
  seed_ = state.seed;
  batches_yielded_ = std::min(batches, plan_.size());
  resume_ = state.batches_yielded > 0;
}

LoaderCursor::Start LoaderCursor::start(std::int64_t skip) {
  if (skip < 0)
    detail::fail(ErrorCategory::usage, "{} batches cannot be skipped; use 0 or more", skip);
  const bool resumed = resume_;
  const std::int64_t resumed_at = resumed ? batches_yielded_ : 0;
  resume_ = false;
  // Both count from the start of the epoch: a program that skips what it has seen may have a loader
  // that was resumed there already.
  batches_yielded_ = std::max(resumed_at, std::min(skip, plan_.size()));
  return {.epoch = epoch_, .first_batch = batches_yielded_, .resumed = resumed};
}

void LoaderCursor::finished(std::int64_t epoch) noexcept {
  if (epoch_ == epoch) ++epoch_;
  batches_yielded_ = 0;
}

}  // namespace accel
