// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/lr_scheduler.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace accel {

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, Factor factor)
    : optimizer_(&optimizer), factor_(std::move(factor)) {
  for (auto& group : optimizer.param_groups()) initial_.push_back(group.options().get_lr());
  apply();
}

void LambdaLR::step() {
  ++last_epoch_;
  apply();
}

void LambdaLR::apply() {
  auto& groups = optimizer_->param_groups();
  if (groups.size() != initial_.size())
    detail::fail(ErrorCategory::usage,
                 "accel: the schedule was made for {} parameter groups and the optimizer has {}; "
                 "make the schedule after the last add_param_group",
                 initial_.size(), groups.size());
  const double factor = factor_(last_epoch_);
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(initial_[i] * factor);
}

std::vector<double> LambdaLR::get_last_lr() const {
  std::vector<double> rates;
  for (auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LambdaLR::load_last_epoch(int64_t last_epoch) {
  if (last_epoch < 0)
    detail::fail(ErrorCategory::checkpoint, "accel: a schedule cannot stand at step {}",
                 last_epoch);
  last_epoch_ = last_epoch;
  apply();
}

LambdaLR step_lr(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma) {
  if (step_size < 1)
    detail::fail(ErrorCategory::config,
                 "accel: step_lr needs a step_size of at least 1, and got {}", step_size);
  return LambdaLR(optimizer,
                  [=](int64_t t) { return std::pow(gamma, static_cast<double>(t / step_size)); });
}

namespace {

/// The warm-up's factor below `warmup`, else `after(progress)` with progress from 0 to 1.
template <class After>
LambdaLR::Factor warmed(int64_t total, int64_t warmup, After after) {
  if (total < 1 || warmup < 0 || warmup > total)
    detail::fail(ErrorCategory::config,
                 "accel: a schedule needs total_steps >= 1 and 0 <= warmup_steps <= total_steps, "
                 "and got {} and {}",
                 total, warmup);
  return [=](int64_t t) {
    if (t < warmup)
      return static_cast<double>(t) / static_cast<double>(std::max<int64_t>(1, warmup));
    return after(static_cast<double>(t - warmup) /
                 static_cast<double>(std::max<int64_t>(1, total - warmup)));
  };
}

}  // namespace

LambdaLR cosine_schedule(torch::optim::Optimizer& optimizer, int64_t total_steps,
                         int64_t warmup_steps) {
  return LambdaLR(optimizer, warmed(total_steps, warmup_steps, [](double progress) {
                    return std::max(
                        0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(progress, 1.0))));
                  }));
}

LambdaLR linear_schedule(torch::optim::Optimizer& optimizer, int64_t total_steps,
                         int64_t warmup_steps) {
  return LambdaLR(optimizer, warmed(total_steps, warmup_steps,
                                    [](double progress) { return std::max(0.0, 1.0 - progress); }));
}

namespace detail {
namespace {
// A derived class may name a protected member of any object of its base through a member pointer.
struct Access : torch::optim::LRScheduler {
  static constexpr auto count() { return &Access::step_count_; }
};
}  // namespace

int64_t steps_of(const torch::optim::LRScheduler& schedule) {
  unsigned torch::optim::LRScheduler::* count = Access::count();
  return schedule.*count;
}

void set_steps_of(torch::optim::LRScheduler& schedule, int64_t steps) {
  unsigned torch::optim::LRScheduler::* count = Access::count();
  schedule.*count = static_cast<unsigned>(steps);
}

}  // namespace detail
}  // namespace accel
