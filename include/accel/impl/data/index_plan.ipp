// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of index_plan.hpp. Positions behind the last sample are taken modulo the number of
// samples, however often that wraps: a world that is larger than the data needs it more than once.
#include <accel/data/index_plan.hpp>
#include <accel/detail/error.hpp>

#include <range/v3/range/conversion.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <algorithm>
#include <limits>

namespace accel {
namespace {

// Far beyond any data, and far enough from the largest integer that the end of a last round cannot
// overflow.
constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max() / 4;

void check(const IndexPlanOptions& options) {
  using detail::fail;
  if (options.samples < 0 || options.samples > largest)
    fail(ErrorCategory::config, "a dataset cannot have {} samples", options.samples);
  if (options.batch_size < 1)
    fail(ErrorCategory::config, "batch_size is {}, and must be at least 1", options.batch_size);
  if (options.num_processes < 1)
    fail(ErrorCategory::config, "num_processes is {}, and must be at least 1",
         options.num_processes);
  if (options.process_index < 0 || options.process_index >= options.num_processes)
    fail(ErrorCategory::config, "process_index is {}, and must be 0 to {} with num_processes {}",
         options.process_index, options.num_processes - 1, options.num_processes);
  if (options.batch_size > largest / options.num_processes)
    fail(ErrorCategory::config,
         "batch_size {} for each of {} processes is more than can be counted; use a smaller "
         "batch_size",
         options.batch_size, options.num_processes);
  if (options.split_batches && options.batch_size % options.num_processes != 0)
    fail(ErrorCategory::config,
         "split_batches cuts a batch into equal parts, but batch_size {} is not a multiple of "
         "num_processes {}; use another batch_size, or split_batches = false",
         options.batch_size, options.num_processes);
}

}  // namespace

IndexPlan::IndexPlan(const IndexPlanOptions& options) : options_(options) {
  check(options);
  slice_ = options.split_batches ? options.batch_size / options.num_processes : options.batch_size;
  round_ = slice_ * options.num_processes;
  batches_ = options.samples / round_;
  const std::int64_t left_over = options.samples % round_;
  if (left_over > 0 && !options.drop_last) {
    const bool has_samples = left_over > options.process_index * slice_;
    if (has_samples || fills_last_round()) ++batches_;
  }
}

std::vector<std::size_t> IndexPlan::indices(std::int64_t batch, const SampleOrder& order) const {
  if (batch < 0 || batch >= batches_)
    detail::fail(ErrorCategory::usage, "batch {} was asked for, and this rank has {} batches",
                 batch, batches_);
  if (order.size() != options_.samples)
    detail::fail(ErrorCategory::usage, "the order has {} samples, and the plan {}", order.size(),
                 options_.samples);

  const std::int64_t first = batch * round_ + options_.process_index * slice_;
  const std::int64_t wanted = first + slice_;
  const std::int64_t last = fills_last_round() ? wanted : std::min(wanted, options_.samples);

  const auto sample_at = [&](std::int64_t position) {
    return static_cast<std::size_t>(order[position % options_.samples]);
  };
  namespace views = ranges::views;
  return views::iota(first, last) | views::transform(sample_at) | ranges::to<std::vector>();
}

std::int64_t IndexPlan::remainder() const noexcept {
  return options_.drop_last ? -1 : options_.samples % round_;
}

}  // namespace accel
