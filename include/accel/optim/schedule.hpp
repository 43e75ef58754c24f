// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A rule bound to an optimizer: PyTorch's learning-rate schedules under their names. Comes after
// lr_rules.hpp and rule_sequence.hpp, which say what the rates are; lr_scheduler.hpp prepares a
// schedule. LibTorch has two of its own, and its StepLR decays one step later than Python's.
#pragma once

#include <accel/optim/lr_rules.hpp>
#include <accel/optim/rule_sequence.hpp>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace accel {

namespace detail {

/// What schedules share: the groups of an optimizer, and what is saved. An object of it is of no
/// use.
class ScheduleBase {
 public:
  /// Steps taken so far.
  [[nodiscard]] std::int64_t last_epoch() const noexcept { return last_epoch_; }
  /// The optimizer whose rates it sets.
  [[nodiscard]] const torch::optim::Optimizer* optimizer() const noexcept { return optimizer_; }
  /// The present learning rate of each group.
  [[nodiscard]] std::vector<double> get_last_lr() const;

  /// What `load_state` takes: steps taken, initial and present rates. Together with the optimizer's
  /// state it resumes to the last bit.
  [[nodiscard]] nlohmann::json state() const;

 protected:
  explicit ScheduleBase(torch::optim::Optimizer& optimizer);

  [[nodiscard]] std::size_t size() const noexcept { return initial_.size(); }
  /// The groups with their present rates.
  [[nodiscard]] std::vector<GroupRate> groups() const;
  /// The groups as they were when the schedule was made.
  [[nodiscard]] std::vector<GroupRate> initial_groups() const;
  /// Gives the optimizer what a rule has set at step t.
  void set(const std::vector<GroupRate>& groups, std::int64_t t);
  void set_momentum(const std::vector<GroupRate>& groups);
  /// Takes a saved state up. A state of earlier versions is a count of steps: it is returned, and
  /// nothing is changed.
  [[nodiscard]] std::optional<std::int64_t> restore(const nlohmann::json& state);

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<double> initial_;
  std::int64_t last_epoch_ = 0;
};

/// Throws where a schedule cannot have taken so many steps.
void check_last_epoch(std::int64_t last_epoch);

}  // namespace detail

/// Sets the rates of an optimizer's groups by a rule: once when it is made (step 0), and at each
/// `step`. The groups' rates at that time are the initial ones. A copy goes on for itself, on the
/// same optimizer, which must outlive it.
template <LRRule Rule>
class Schedule : public detail::ScheduleBase {
 public:
  Schedule(torch::optim::Optimizer& optimizer, Rule rule)
      : ScheduleBase(optimizer), rule_(std::move(rule)) {
    if constexpr (requires { rule_.check(size()); }) rule_.check(size());
    load_last_epoch(0);
  }

  void step() { set(at(groups(), last_epoch() + 1), last_epoch() + 1); }

  /// Goes to where it stands after so many steps from the start.
  void load_last_epoch(std::int64_t last_epoch) {
    detail::check_last_epoch(last_epoch);
    auto rates = initial_groups();
    for (std::int64_t t = 0; t <= last_epoch; ++t) rates = at(std::move(rates), t);
    set(rates, last_epoch);
  }

  /// Continues where a saved schedule stood.
  void load_state(const nlohmann::json& state) {
    if (const auto steps = restore(state)) return load_last_epoch(*steps);
    set_momentum(at(groups(), last_epoch()));  // which does not depend on the rate at hand
  }

  [[nodiscard]] const Rule& rule() const noexcept { return rule_; }

  /// The steps that it can take, where the rule has an end.
  [[nodiscard]] std::int64_t total_steps() const
    requires requires(const Rule& rule) { rule.total_steps; }
  {
    return rule_.total_steps;
  }

 private:
  [[nodiscard]] std::vector<GroupRate> at(std::vector<GroupRate> rates, std::int64_t t) const {
    for (auto& group : rates) rule_(group, t);
    return rates;
  }

  Rule rule_;
};

using LambdaLR = Schedule<LambdaRule>;
using MultiplicativeLR = Schedule<MultiplicativeRule>;
using StepLR = Schedule<StepRule>;
using MultiStepLR = Schedule<MultiStepRule>;
using ConstantLR = Schedule<ConstantRule>;
using LinearLR = Schedule<LinearRule>;
using ExponentialLR = Schedule<ExponentialRule>;
using PolynomialLR = Schedule<PolynomialRule>;
using CosineAnnealingLR = Schedule<CosineAnnealingRule>;
using CosineAnnealingWarmRestarts = Schedule<CosineAnnealingWarmRestartsRule>;
using OneCycleLR = Schedule<OneCycleRule>;
using CyclicLR = Schedule<CyclicRule>;
using SequentialLR = Schedule<SequentialRule>;
using ChainedScheduler = Schedule<ChainedRule>;

}  // namespace accel
