// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/data/metrics.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace accel::detail {

std::vector<RoundShare> MetricsGatherer::shares_with_repeats(int num_processes) {
  if (num_processes == 1) return {};
  if (!loaders_->in_dataloader() && !std::exchange(told_of_loop_, true))
    warn_(
        "accel: gather_for_metrics outside of a loop over a prepared loader is gather: it cannot "
        "know which samples were repeated to make the last batches even. Call it in the loop, for "
        "each batch");
  return loaders_->shares_with_repeats(num_processes);
}

at::Tensor MetricsGatherer::gather_rows(const Communicator& communicator, const at::Tensor& tensor,
                                        const std::vector<RoundShare>& shares,
                                        const CallSite& where, int64_t part) {
  auto all = communicator.all_gather(tensor, where, part);
  if (part == 0) return all;  // a value without tensors
  const auto rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  const auto each = per_sample(communicator.all_lengths(rows, 0, where, part), shares);
  return each ? real_rows(all, shares, *each) : all;
}

std::optional<int64_t> MetricsGatherer::per_sample(const std::vector<int64_t>& lengths,
                                                   const std::vector<RoundShare>& shares) {
  const auto each = rows_per_sample(lengths, shares);
  // As many on every rank: something of each rank's batch, and of no sample.
  const bool differ = std::ranges::adjacent_find(lengths, std::not_equal_to<>()) != lengths.end();
  if (!each && differ && !std::exchange(told_of_rows_, true)) {
    std::vector<int64_t> samples;
    for (const auto& share : shares) samples.push_back(share.given);
    warn_(fmt::format(
        "accel: gather_for_metrics cannot leave out the samples that were repeated to make the "
        "last "
        "batches even: the ranks have {} rows or objects, and batches of {} samples. Give a tensor "
        "the same number of rows for each sample, or gather a vector with an object a sample",
        fmt::join(lengths, ", "), fmt::join(samples, ", ")));
  }
  return each;
}

}  // namespace accel::detail
