// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of samplers.hpp.
#include <accel/data/samplers.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace accel {

WeightedRandomSampler::WeightedRandomSampler(const std::vector<double>& weights,
                                             std::int64_t samples, bool replacement)
    : weights_(at::empty({std::ssize(weights)}, at::TensorOptions(at::kDouble))),
      samples_(samples),
      replacement_(replacement) {
  std::ranges::copy(weights, weights_.mutable_data_ptr<double>());
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(weights[i]) || weights[i] < 0)
      detail::fail(ErrorCategory::config,
                   "weight {} of a sampler is {}, and must be finite and not below 0", i,
                   weights[i]);
  const auto drawable = std::ranges::count_if(weights, [](double weight) { return weight > 0; });
  if (samples < 0 || (samples > 0 && drawable == 0) || (!replacement && samples > drawable))
    detail::fail(ErrorCategory::config,
                 "a sampler cannot draw {} samples {} replacement from {} with a weight above 0; "
                 "use fewer samples, or replacement",
                 samples, replacement ? "with" : "without", drawable);
}

std::vector<std::int64_t> WeightedRandomSampler::order(std::int64_t, std::uint64_t seed) const {
  if (samples_ == 0) return {};
  auto generator = at::detail::createCPUGenerator(seed);
  const auto drawn = at::multinomial(weights_, samples_, replacement_, generator);
  const auto* first = drawn.const_data_ptr<std::int64_t>();
  return {first, first + drawn.numel()};
}

namespace detail {

namespace {

void require_length(std::size_t given, std::string_view what, std::int64_t size) {
  if (static_cast<std::int64_t>(given) != size)
    fail(ErrorCategory::data,
         "the sampler gave an order of {} {}, and its size() is {}; make them equal", given, what,
         size);
}

void require_sample(std::int64_t number, std::string_view what, std::size_t place,
                    std::int64_t dataset_size) {
  if (number < 0 || number >= dataset_size)
    fail(ErrorCategory::data,
         "the sampler gave sample {} {} {} of an epoch, and the dataset has {} samples, which "
         "count from 0",
         number, what, place, dataset_size);
}

}  // namespace

EpochOrder checked_order(std::vector<std::int64_t> order, std::int64_t samples,
                         std::int64_t dataset_size) {
  require_length(order.size(), "samples", samples);
  for (std::size_t place = 0; place < order.size(); ++place)
    require_sample(order[place], "at place", place, dataset_size);
  return EpochOrder(std::move(order));
}

EpochBatches checked_batches(const std::vector<std::vector<std::int64_t>>& given,
                             std::int64_t batches, std::int64_t dataset_size) {
  require_length(given.size(), "batches", batches);
  EpochBatches checked;
  for (std::size_t place = 0; place < given.size(); ++place) {
    if (given[place].empty())
      fail(ErrorCategory::data,
           "the sampler gave batch {} of an epoch without samples; leave it out", place);
    for (const auto number : given[place]) require_sample(number, "in batch", place, dataset_size);
    checked.emplace_back(given[place].begin(), given[place].end());
  }
  return checked;
}

EpochOrder as_order(const EpochBatches& batches) {
  std::vector<std::int64_t> numbers;
  for (const auto& batch : batches) {
    numbers.push_back(std::ssize(batch));
    numbers.insert(numbers.end(), batch.begin(), batch.end());
  }
  return EpochOrder(std::move(numbers));
}

std::vector<RoundShare> shares_of_round(const EpochBatches& batches, std::int64_t round,
                                        int num_processes) {
  std::vector<RoundShare> shares;
  std::int64_t first = 0;
  for (int rank = 0; rank < num_processes; ++rank) {
    const auto place = static_cast<std::size_t>(round * num_processes + rank);
    const auto length = std::ssize(batches[place % batches.size()]);
    shares.push_back({first, length, place < batches.size() ? length : 0});
    first += length;
  }
  return shares;
}

void check_sampler_options(const DataLoaderOptions& options, std::int64_t size,
                           bool gives_batches) {
  if (options.shuffle)
    fail(ErrorCategory::config,
         "shuffle is set, and the loader has a sampler, which says the order; use one of them");
  if (size < 0)
    fail(ErrorCategory::config, "the size() of a sampler is {}, and must be 0 or more", size);
  if (gives_batches && (options.batch_size != 1 || options.split_batches))
    fail(ErrorCategory::config,
         "batch_size is {} and split_batches {}, and the loader has a sampler that gives whole "
         "batches; leave batch_size at 1 and split_batches off",
         options.batch_size, options.split_batches);
}

}  // namespace detail
}  // namespace accel
