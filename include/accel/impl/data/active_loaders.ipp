// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The stack of active_loaders.hpp.
#include <accel/data/active_loaders.hpp>

#include <algorithm>
#include <utility>

namespace accel {

struct ActiveLoaders::Iteration::Flags {
  std::int64_t remainder;
  std::int64_t total_batch_size;
  bool last_batch = false;
  std::uint64_t number = 0;
  std::vector<RoundShare> shares{};
};

ActiveLoaders::Iteration::Iteration(std::shared_ptr<ActiveLoaders> loaders, std::int64_t remainder,
                                    std::int64_t total_batch_size)
    : loaders_(std::move(loaders)),
      flags_(new Flags{.remainder = remainder, .total_batch_size = total_batch_size}) {
  if (!loaders_) return;
  flags_->number = ++loaders_->iterations_;
  loaders_->stack_.push_back(flags_.get());
}

ActiveLoaders::Iteration::Iteration(Iteration&& other) noexcept = default;

ActiveLoaders::Iteration::~Iteration() {
  // Not simply the top: an outer loop's iterator may be destroyed before an inner one's.
  if (loaders_) std::erase(loaders_->stack_, flags_.get());
}

void ActiveLoaders::Iteration::reached_last_batch() noexcept { flags_->last_batch = true; }

void ActiveLoaders::Iteration::reached_round(std::vector<RoundShare> shares,
                                             std::int64_t remainder) noexcept {
  flags_->shares = std::move(shares);
  flags_->remainder = remainder;
}

ActiveLoaders::ActiveLoaders() = default;
ActiveLoaders::~ActiveLoaders() = default;

bool ActiveLoaders::end_of_dataloader() const noexcept {
  return in_dataloader() && stack_.back()->last_batch;
}

std::int64_t ActiveLoaders::remainder() const noexcept {
  return in_dataloader() ? stack_.back()->remainder : -1;
}

const std::vector<RoundShare>& ActiveLoaders::shares() const noexcept {
  static const std::vector<RoundShare> none;
  return in_dataloader() ? stack_.back()->shares : none;
}

std::vector<RoundShare> ActiveLoaders::shares_with_repeats(int num_processes) const {
  auto round = shares();
  // Of a dataset, whose last round alone may lack samples.
  if (round.empty() && end_of_dataloader() && remainder() > 0) {
    const auto slice = total_batch_size() / num_processes;
    for (std::int64_t first = 0; first < total_batch_size(); first += slice)
      round.push_back({first, slice, std::clamp<std::int64_t>(remainder() - first, 0, slice)});
  }
  const bool repeats =
      std::ranges::any_of(round, [](const RoundShare& share) { return share.real < share.given; });
  return repeats ? round : std::vector<RoundShare>();
}

std::int64_t ActiveLoaders::total_batch_size() const noexcept {
  return in_dataloader() ? stack_.back()->total_batch_size : 1;
}

std::uint64_t ActiveLoaders::innermost() const noexcept {
  return in_dataloader() ? stack_.back()->number : 0;
}

bool ActiveLoaders::is_active(std::uint64_t iteration) const noexcept {
  return std::ranges::any_of(
      stack_, [&](const Iteration::Flags* flags) { return flags->number == iteration; });
}

}  // namespace accel
