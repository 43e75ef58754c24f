// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/rule_sequence.hpp>

#include <accel/detail/error.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace accel {

void SequentialRule::operator()(GroupRate& group, std::int64_t t) const {
  const auto next = std::ranges::upper_bound(milestones, t);
  const std::int64_t begin = next == milestones.begin() ? 0 : *std::prev(next);
  if (t == begin) group.lr = group.initial_lr;
  rules[static_cast<std::size_t>(next - milestones.begin())](group, t - begin);
}

void SequentialRule::check(std::size_t groups) const {
  if (rules.empty() || milestones.size() + 1 != rules.size())
    detail::fail(
        ErrorCategory::config,
        "accel: SequentialLR needs one milestone fewer than rules, and got {} rules and {} "
        "milestones",
        rules.size(), milestones.size());
  for (std::size_t i = 0; i < milestones.size(); ++i)
    if (milestones[i] <= (i == 0 ? 0 : milestones[i - 1]))
      detail::fail(ErrorCategory::config,
                   "accel: SequentialLR needs milestones that rise from 1 or more, and got {}",
                   milestones);
  for (const auto& rule : rules) rule.check(groups);
}

void ChainedRule::operator()(GroupRate& group, std::int64_t t) const {
  for (const auto& rule : rules) rule(group, t);
}

void ChainedRule::check(std::size_t groups) const {
  if (rules.empty())
    detail::fail(ErrorCategory::config, "accel: ChainedScheduler needs at least one rule");
  for (const auto& rule : rules) rule.check(groups);
}

SequentialRule with_warmup(AnyRule rule, std::int64_t steps, double start_factor) {
  if (steps == 0) return {.rules = {std::move(rule)}};
  return {
      .rules = {LinearRule{.start_factor = start_factor, .total_iters = steps}, std::move(rule)},
      .milestones = {steps}};
}

}  // namespace accel
