// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/schedule.hpp>

#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>

namespace accel::detail {

void check_last_epoch(std::int64_t last_epoch) {
  if (last_epoch < 0)
    fail(ErrorCategory::checkpoint, "accel: a schedule cannot stand at step {}", last_epoch);
}

ScheduleBase::ScheduleBase(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
  initial_ = get_last_lr();
}

std::vector<double> ScheduleBase::get_last_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::vector<GroupRate> ScheduleBase::initial_groups() const {
  std::vector<GroupRate> groups;
  groups.reserve(initial_.size());
  for (std::size_t i = 0; i < initial_.size(); ++i)
    groups.push_back({.group = i, .initial_lr = initial_[i], .lr = initial_[i]});
  return groups;
}

std::vector<GroupRate> ScheduleBase::groups() const {
  const auto rates = get_last_lr();
  if (rates.size() != initial_.size())
    fail(ErrorCategory::usage,
         "accel: the schedule was made for {} parameter groups and the optimizer has {}; make the "
         "schedule after the last add_param_group",
         initial_.size(), rates.size());
  auto groups = initial_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].lr = rates[i];
  return groups;
}

void ScheduleBase::set(const std::vector<GroupRate>& groups, std::int64_t t) {
  set_momentum(groups);
  for (const auto& group : groups)
    optimizer_->param_groups()[group.group].options().set_lr(group.lr);
  last_epoch_ = t;
}

namespace {

/// Sets the first beta of options that have betas.
template <class Options>
bool set_beta(torch::optim::OptimizerOptions& options, double value) {
  auto* own = dynamic_cast<Options*>(&options);
  if (own) own->betas(std::tuple(value, std::get<1>(own->betas())));
  return own;
}

template <class Options>
bool set_own_momentum(torch::optim::OptimizerOptions& options, double value) {
  auto* own = dynamic_cast<Options*>(&options);
  if (own) own->momentum(value);
  return own;
}

}  // namespace

void ScheduleBase::set_momentum(const std::vector<GroupRate>& groups) {
  using namespace torch::optim;
  for (const auto& [group, initial_lr, lr, momentum] : groups) {
    if (!momentum) continue;
    auto& options = optimizer_->param_groups()[group].options();
    if (!set_own_momentum<SGDOptions>(options, *momentum) &&
        !set_own_momentum<RMSpropOptions>(options, *momentum) &&
        !set_beta<AdamOptions>(options, *momentum) && !set_beta<AdamWOptions>(options, *momentum))
      fail(
          ErrorCategory::usage,
          "accel: the optimizer of parameter group {} has no momentum to cycle; set cycle_momentum "
          "= false",
          group);
  }
}

nlohmann::json ScheduleBase::state() const {
  return {{"last_epoch", last_epoch_}, {"initial_lr", initial_}, {"lr", get_last_lr()}};
}

namespace {

/// A rate for each group.
bool are_rates(const nlohmann::json& state, const char* key, std::size_t groups) {
  const auto found = state.find(key);
  return found != state.end() && found->is_array() && found->size() == groups &&
         std::ranges::all_of(*found, [](const auto& rate) { return rate.is_number(); });
}

}  // namespace

std::optional<std::int64_t> ScheduleBase::restore(const nlohmann::json& state) {
  if (state.is_number_integer()) return state.get<std::int64_t>();
  const auto steps = state.is_object() ? state.find("last_epoch") : state.end();
  if (steps == state.end() || !steps->is_number_integer() ||
      !are_rates(state, "initial_lr", initial_.size()) || !are_rates(state, "lr", initial_.size()))
    fail(ErrorCategory::checkpoint,
         "accel: this is no state of a schedule of {} parameter groups: {}", initial_.size(),
         state.dump());
  check_last_epoch(steps->get<std::int64_t>());
  initial_ = state["initial_lr"].get<std::vector<double>>();
  auto saved = initial_groups();
  const auto rates = state["lr"].get<std::vector<double>>();
  for (std::size_t i = 0; i < saved.size(); ++i) saved[i].lr = rates[i];
  set(saved, steps->get<std::int64_t>());
  return std::nullopt;
}

}  // namespace accel::detail
