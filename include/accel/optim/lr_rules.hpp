// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The rules of PyTorch's learning-rate schedules, as values. A rule is a pure function of a
// parameter group and the number of steps taken; it knows no optimizer and keeps no state, so it
// can be copied, nested (rule_sequence.hpp) and tried without LibTorch. Each computes what the
// schedule of that name in torch.optim.lr_scheduler (2.11) does, by the same operations in the same
// order. schedule.hpp, which follows, binds a rule to an optimizer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace accel {

/// One parameter group, as a rule sees it and changes it.
struct GroupRate {
  std::size_t group = 0;  ///< its place in the optimizer
  double initial_lr = 0;  ///< its rate when the schedule was made
  double lr = 0;          ///< its rate now; a rule sets it
  /// What a rule that cycles it sets: SGD's and RMSprop's momentum, Adam's beta1.
  std::optional<double> momentum{};
};

/// `rule(group, t)` sets the rate that a group has after t steps, for t = 0, 1, 2, ... in this
/// order; at 0 the rate at hand is the initial one. A rule may have `check(groups)`, which throws
/// where its numbers are wrong or do not fit that many groups.
template <class T>
concept LRRule = std::copy_constructible<T> &&
                 requires(const T& rule, GroupRate& group, std::int64_t t) { rule(group, t); };

namespace detail {
/// Throws where a list of values is neither one for all groups nor one for each.
void check_values(std::string_view what, std::size_t values, std::size_t groups);
}  // namespace detail

/// A value for every group, or a list with one for each.
template <class Value>
class PerGroupOf {
 public:
  template <std::convertible_to<Value> Every>
  PerGroupOf(Every every) : values_{Value(std::move(every))}, listed_(false) {}
  PerGroupOf(std::initializer_list<Value> each) : values_(each), listed_(true) {}
  PerGroupOf(std::vector<Value> each) : values_(std::move(each)), listed_(true) {}

  [[nodiscard]] const Value& operator[](std::size_t group) const {
    return listed_ ? values_.at(group) : values_.front();
  }
  [[nodiscard]] const std::vector<Value>& values() const noexcept { return values_; }
  void check(std::string_view what, std::size_t groups) const {
    if (listed_) detail::check_values(what, values_.size(), groups);
  }

 private:
  std::vector<Value> values_;
  bool listed_;
};

using PerGroup = PerGroupOf<double>;
/// Of the number of steps taken.
using StepFunction = std::function<double(std::int64_t)>;

namespace detail {
/// What the two rules of functions share: `LambdaRule(f)`, `LambdaRule{f, g}`.
struct FunctionRule {
  PerGroupOf<StepFunction> lr_lambda;

  template <std::convertible_to<PerGroupOf<StepFunction>> Functions>
  FunctionRule(Functions functions) : lr_lambda(std::move(functions)) {}
  FunctionRule(std::initializer_list<StepFunction> each) : lr_lambda(each) {}

  void check(std::size_t groups) const { lr_lambda.check("lr_lambda", groups); }
};
}  // namespace detail

/// The initial rate times a function of t.
struct LambdaRule : detail::FunctionRule {
  using FunctionRule::FunctionRule;
  void operator()(GroupRate& group, std::int64_t t) const;
};

/// The rate at hand times a function of t, from the first step on.
struct MultiplicativeRule : detail::FunctionRule {
  using FunctionRule::FunctionRule;
  void operator()(GroupRate& group, std::int64_t t) const;
};

/// Times `gamma` every `step_size` steps.
struct StepRule {
  std::int64_t step_size = 0;
  double gamma = 0.1;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// Times `gamma` at each milestone; one that is listed twice counts twice.
struct MultiStepRule {
  std::vector<std::int64_t> milestones{};
  double gamma = 0.1;

  void operator()(GroupRate& group, std::int64_t t) const;
};

/// Times `factor` for the first `total_iters` steps.
struct ConstantRule {
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// From `start_factor` to `end_factor` along a line over `total_iters` steps; then it leaves the
/// rate alone.
struct LinearRule {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t total_iters = 5;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// Times `gamma` every step.
struct ExponentialRule {
  double gamma = 0;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// To 0 over `total_iters` steps, as a power of what remains.
struct PolynomialRule {
  std::int64_t total_iters = 5;
  double power = 1.0;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// Along half a cosine to `eta_min` over `T_max` steps, and back over the next `T_max`.
struct CosineAnnealingRule {
  std::int64_t T_max = 0;
  double eta_min = 0;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// Along half a cosine to `eta_min` over `T_0` steps, then anew from the initial rate, each time
/// over `T_mult` times as many.
struct CosineAnnealingWarmRestartsRule {
  std::int64_t T_0 = 0;
  std::int64_t T_mult = 1;
  double eta_min = 0;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// How OneCycleRule goes from one value to the next.
enum class Anneal { cos, linear };

/// From `max_lr / div_factor` up to `max_lr` over the share `pct_start` of the steps, then down to
/// the first value divided by `final_div_factor`; the momentum the other way round. It may be
/// stepped `total_steps` times. The optimizer's own rate does not matter.
struct OneCycleRule {
  PerGroup max_lr = 0;
  std::int64_t total_steps = 0;
  double pct_start = 0.3;
  Anneal anneal_strategy = Anneal::cos;
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

/// How the height of CyclicRule's triangles changes: not at all, halved with each cycle, or times
/// `gamma` with each step.
enum class Cycle { triangular, triangular2, exp_range };

/// From `base_lr` to `max_lr` over `step_size_up` steps and back over `step_size_down` (as many,
/// where it is not given), again and again; the momentum the other way round.
struct CyclicRule {
  PerGroup base_lr = 0;
  PerGroup max_lr = 0;
  std::int64_t step_size_up = 2000;
  std::optional<std::int64_t> step_size_down{};
  Cycle mode = Cycle::triangular;
  double gamma = 1.0;
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8;
  PerGroup max_momentum = 0.9;

  void operator()(GroupRate& group, std::int64_t t) const;
  void check(std::size_t groups) const;
};

}  // namespace accel
