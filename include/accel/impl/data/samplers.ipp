// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of samplers.hpp.
#include <accel/data/samplers.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

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

EpochOrder checked_order(std::vector<std::int64_t> order, std::int64_t samples,
                         std::int64_t dataset_size) {
  if (std::ssize(order) != samples)
    fail(ErrorCategory::data,
         "the sampler gave an order of {} samples, and its size() is {}; make them equal",
         order.size(), samples);
  for (std::size_t place = 0; place < order.size(); ++place)
    if (order[place] < 0 || order[place] >= dataset_size)
      fail(ErrorCategory::data,
           "the sampler gave sample {} at place {} of an epoch, and the dataset has {} samples, "
           "which count from 0",
           order[place], place, dataset_size);
  return EpochOrder(std::move(order));
}

void check_sampler_options(bool shuffle, std::int64_t samples) {
  if (shuffle)
    fail(ErrorCategory::config,
         "shuffle is set, and the loader has a sampler, which says the order; use one of them");
  if (samples < 0)
    fail(ErrorCategory::config, "the size() of a sampler is {}, and must be 0 or more", samples);
}

}  // namespace detail
}  // namespace accel
