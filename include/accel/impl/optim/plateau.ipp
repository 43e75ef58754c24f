// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/plateau.hpp>

#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace accel {
namespace {

double worst(PlateauMode mode) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == PlateauMode::min ? infinity : -infinity;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : optimizer_(&optimizer), options_(std::move(options)), best_(worst(options_.mode)) {
  if (!(options_.factor >= 0 && options_.factor < 1) || options_.patience < 0 ||
      options_.cooldown < 0)
    detail::fail(ErrorCategory::config,
                 "accel: ReduceLROnPlateau needs 0 <= factor < 1 and no negative patience or "
                 "cooldown, and got {}, {} and {}",
                 options_.factor, options_.patience, options_.cooldown);
  options_.min_lr.check("min_lr", optimizer.param_groups().size());
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  if (options_.mode == PlateauMode::min)
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  options_.min_lr.check("min_lr", optimizer_->param_groups().size());  // a group may be new
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (in_cooldown()) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    reduce();
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
}

void ReduceLROnPlateau::step(const at::Tensor& metric) { step(metric.item<double>()); }

void ReduceLROnPlateau::reduce() {
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double before = groups[i].options().get_lr();
    const double after = std::max(before * options_.factor, options_.min_lr[i]);
    if (before - after > options_.eps) groups[i].options().set_lr(after);
  }
}

std::vector<double> ReduceLROnPlateau::get_last_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

nlohmann::json ReduceLROnPlateau::state() const {
  // JSON has no infinity: before the first metric there is no best one.
  return {{"last_epoch", last_epoch_},
          {"best", std::isfinite(best_) ? nlohmann::json(best_) : nlohmann::json()},
          {"num_bad_epochs", num_bad_epochs_},
          {"cooldown_counter", cooldown_counter_},
          {"lr", get_last_lr()}};
}

void ReduceLROnPlateau::load_state(const nlohmann::json& state) {
  auto& groups = optimizer_->param_groups();
  const auto count = [&](const char* key) {
    const auto found = state.is_object() ? state.find(key) : state.end();
    return found != state.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
  };
  const std::int64_t epoch = count("last_epoch"), bad = count("num_bad_epochs"),
                     cooldown = count("cooldown_counter");
  const auto is_number = [](const nlohmann::json& value) { return value.is_number(); };
  if (epoch < 0 || bad < 0 || cooldown < 0 || !state.contains("best") ||
      !(state["best"].is_null() || is_number(state["best"])) || !state.contains("lr") ||
      !state["lr"].is_array() || state["lr"].size() != groups.size() ||
      !std::ranges::all_of(state["lr"], is_number))
    detail::fail(ErrorCategory::checkpoint,
                 "accel: this is no state of a ReduceLROnPlateau of {} parameter groups: {}",
                 groups.size(), state.dump());
  last_epoch_ = epoch;
  num_bad_epochs_ = bad;
  cooldown_counter_ = cooldown;
  best_ = state["best"].is_null() ? worst(options_.mode) : state["best"].get<double>();
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i].options().set_lr(state["lr"][i].get<double>());
}

}  // namespace accel
