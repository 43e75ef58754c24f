// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of sampler.hpp.
#include <accel/data/sampler.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <mutex>
#include <span>
#include <utility>

namespace accel {

std::uint64_t default_data_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

EpochOrder::EpochOrder(std::int64_t samples, bool shuffle, std::uint64_t seed, std::int64_t epoch)
    : samples_(samples) {
  if (shuffle) {
    auto generator = at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(epoch));
    permutation_ = at::randperm(samples, generator, at::TensorOptions(at::kLong));
  }
}

EpochOrder::EpochOrder(std::vector<std::int64_t> order)
    : samples_(static_cast<std::int64_t>(order.size())),
      given_(std::move(order)),
      is_given_(true) {}

SampleOrder EpochOrder::order() const {
  if (is_given_) return SampleOrder(std::span(given_));
  if (!permutation_.defined()) return SampleOrder(samples_);
  return SampleOrder(
      std::span(permutation_.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(samples_)));
}

void detail::draw_base_seed() { at::empty({}, at::kLong).random_(); }

}  // namespace accel
