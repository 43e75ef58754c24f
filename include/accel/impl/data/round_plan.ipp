// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of round_plan.hpp.
#include <accel/data/round_plan.hpp>
#include <accel/data/index_plan.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>
#include <numeric>

namespace accel {

RoundPlan::RoundPlan(const RoundPlanOptions& options) : options_(options) {
  // The rules between these numbers are those of datasets.
  const IndexPlan checked({.batch_size = options.batch_size,
                           .num_processes = options.num_processes,
                           .drop_last = options.drop_last,
                           .even_batches = options.even_batches,
                           .split_batches = options.split_batches});
  if (options.dispatch && options.already_sharded)
    detail::fail(ErrorCategory::config,
                 "dispatch_batches and already_sharded are both set: rank 0 cannot read for the "
                 "others what each of them has; use one of them");
  slice_ = checked.total_batch_size() / options.num_processes;
}

bool RoundPlan::exists(const std::vector<std::int64_t>& found) const noexcept {
  if (options_.drop_last)
    return std::ranges::all_of(found, [&](auto count) { return count == read_size(); });
  return std::ranges::any_of(found, [](auto count) { return count > 0; });
}

std::vector<RoundShare> RoundPlan::shares(const std::vector<std::int64_t>& found) const {
  const std::int64_t world = options_.num_processes;
  std::vector<RoundShare> shares(static_cast<std::size_t>(world));
  std::int64_t first = 0;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    auto& share = shares[static_cast<std::size_t>(rank)];
    if (options_.already_sharded) {
      const auto own = found[static_cast<std::size_t>(rank)];
      share = {0, fills() ? slice_ : own, own};
      continue;
    }
    const std::int64_t real = found.front();
    std::int64_t wanted = slice_;
    if (options_.dispatch)
      wanted = fills() ? (real + world - 1) / world : real / world + (rank < real % world ? 1 : 0);
    const auto left = std::max<std::int64_t>(real - first, 0);
    share = {first, fills() ? wanted : std::min(wanted, left), std::min(wanted, left)};
    first += wanted;
  }
  return shares;
}

std::int64_t RoundPlan::batches(std::int64_t samples, int rank) const {
  const std::int64_t full = samples / read_size();
  const std::vector<std::int64_t> left(
      options_.already_sharded ? static_cast<std::size_t>(options_.num_processes) : 1,
      samples % read_size());
  if (options_.drop_last || !exists(left)) return full;
  return full + (shares(left)[static_cast<std::size_t>(rank)].given > 0 ? 1 : 0);
}

}  // namespace accel
