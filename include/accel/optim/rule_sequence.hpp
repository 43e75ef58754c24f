// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Rules made of rules: one after another, all at once, and after a warm-up. Here alone a rule's
// type is forgotten, behind AnyRule. Since a rule knows no optimizer, a member of a sequence has
// not touched one before its turn; PyTorch's SequentialLR must first undo what its members did when
// they were made. Comes after lr_rules.hpp; no LibTorch.
#pragma once

#include <accel/optim/lr_rules.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace accel {

/// A rule of any type. Copies share it, which nobody can tell: rules do not change.
class AnyRule {
 public:
  template <class Rule>
    requires(!std::same_as<Rule, AnyRule> && LRRule<Rule>)
  AnyRule(Rule rule) {
    auto shared = std::make_shared<const Rule>(std::move(rule));
    call_ = [shared](GroupRate& group, std::int64_t t) { (*shared)(group, t); };
    if constexpr (requires(std::size_t groups) { shared->check(groups); })
      check_ = [shared](std::size_t groups) { shared->check(groups); };
  }

  void operator()(GroupRate& group, std::int64_t t) const { call_(group, t); }
  void check(std::size_t groups) const {
    if (check_) check_(groups);
  }

 private:
  std::function<void(GroupRate&, std::int64_t)> call_;
  std::function<void(std::size_t)> check_;
};

/// The first rule up to the first milestone; from each milestone on the next one, which starts with
/// the initial rate and counts its steps from 0.
struct SequentialRule {
  std::vector<AnyRule> rules{};
  std::vector<std::int64_t> milestones{};

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// All rules at each step, each one on the rate that the one before it left.
struct ChainedRule {
  std::vector<AnyRule> rules{};

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// A rule that starts after `steps` steps (none: at once), in which the rate rises along a line
/// from `start_factor` of the initial one: PyTorch's SequentialLR of a LinearLR and the rule.
[[nodiscard]] SequentialRule with_warmup(AnyRule rule, std::int64_t steps,
                                         double start_factor = 0.01);

}  // namespace accel
