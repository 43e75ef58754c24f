// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of optim/lr_rules.hpp. PyTorch computes most rates from the one at hand, and a rounding
// that it does is done here too: what looks like a detour (a factor that is divided out again) is
// its order of operations.
#include <accel/optim/lr_rules.hpp>

#include <accel/detail/error.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace accel {
namespace {

using std::numbers::pi;

double number(std::int64_t count) { return static_cast<double>(count); }

/// Along half a cosine, or a line; `share` runs from 0 to 1.
double between(Anneal how, double start, double end, double share) {
  if (how == Anneal::linear) return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(pi * share) + 1);
}

}  // namespace

void detail::check_values(std::string_view what, std::size_t values, std::size_t groups) {
  if (values != groups)
    fail(ErrorCategory::config,
         "accel: {} lists {} values and the optimizer has {} parameter groups; give one value for "
         "all, or one for each",
         what, values, groups);
}

void LambdaRule::operator()(GroupRate& group, std::int64_t t) const {
  group.lr = group.initial_lr * lr_lambda[group.group](t);
}

void MultiplicativeRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t > 0) group.lr *= lr_lambda[group.group](t);
}

void StepRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t > 0 && t % step_size == 0) group.lr *= gamma;
}

void StepRule::check(std::size_t) const {
  if (step_size < 1)
    detail::fail(ErrorCategory::config, "accel: StepLR needs a step_size of at least 1, and got {}",
                 step_size);
}

void MultiStepRule::operator()(GroupRate& group, std::int64_t t) const {
  if (const auto times = std::ranges::count(milestones, t); times > 0)
    group.lr *= std::pow(gamma, number(times));
}

void ConstantRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t == 0)
    group.lr *= factor;
  else if (t == total_iters)
    group.lr *= 1.0 / factor;
}

void ConstantRule::check(std::size_t) const {
  if (!(factor > 0 && factor <= 1) || total_iters < 1)
    detail::fail(
        ErrorCategory::config,
        "accel: ConstantLR needs 0 < factor <= 1 and total_iters of at least 1, and got {} "
        "and {}",
        factor, total_iters);
}

void LinearRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t == 0)
    group.lr *= start_factor;
  else if (t <= total_iters)
    group.lr *= 1.0 + (end_factor - start_factor) / (number(total_iters) * start_factor +
                                                     number(t - 1) * (end_factor - start_factor));
}

void LinearRule::check(std::size_t) const {
  if (!(start_factor > 0 && start_factor <= 1 && end_factor >= 0 && end_factor <= 1) ||
      total_iters < 1)
    detail::fail(
        ErrorCategory::config,
        "accel: LinearLR needs 0 < start_factor <= 1, 0 <= end_factor <= 1 and total_iters "
        "of at least 1, and got {}, {} and {}",
        start_factor, end_factor, total_iters);
}

void ExponentialRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t > 0) group.lr *= gamma;
}

void ExponentialRule::check(std::size_t) const {
  if (!(gamma > 0))
    detail::fail(ErrorCategory::config, "accel: ExponentialLR needs a gamma above 0, and got {}",
                 gamma);
}

void PolynomialRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t == 0 || t > total_iters) return;
  group.lr *= std::pow(
      (1.0 - number(t) / number(total_iters)) / (1.0 - number(t - 1) / number(total_iters)), power);
}

void PolynomialRule::check(std::size_t) const {
  if (total_iters < 1)
    detail::fail(ErrorCategory::config,
                 "accel: PolynomialLR needs total_iters of at least 1, and got {}", total_iters);
}

void CosineAnnealingRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t == 0) return;
  const double steps = number(T_max);
  if ((t - 1 - T_max) % (2 * T_max) == 0)  // from the minimum, where the quotient below is 0 / 0
    group.lr += (group.initial_lr - eta_min) * (1 - std::cos(pi / steps)) / 2;
  else
    group.lr = (1 + std::cos(pi * number(t) / steps)) / (1 + std::cos(pi * number(t - 1) / steps)) *
                   (group.lr - eta_min) +
               eta_min;
}

void CosineAnnealingRule::check(std::size_t) const {
  if (T_max < 1)
    detail::fail(ErrorCategory::config,
                 "accel: CosineAnnealingLR needs a T_max of at least 1, and got {}", T_max);
}

void CosineAnnealingWarmRestartsRule::operator()(GroupRate& group, std::int64_t t) const {
  std::int64_t length = T_0;
  if (T_mult == 1) t %= length;
  for (; t >= length; length *= T_mult) t -= length;  // a logarithm of steps
  group.lr =
      eta_min + (group.initial_lr - eta_min) * (1 + std::cos(pi * number(t) / number(length))) / 2;
}

void CosineAnnealingWarmRestartsRule::check(std::size_t) const {
  if (T_0 < 1 || T_mult < 1)
    detail::fail(
        ErrorCategory::config,
        "accel: CosineAnnealingWarmRestarts needs T_0 and T_mult of at least 1, and got {} "
        "and {}",
        T_0, T_mult);
}

void OneCycleRule::operator()(GroupRate& group, std::int64_t t) const {
  if (t > total_steps)
    detail::fail(ErrorCategory::usage,
                 "accel: OneCycleLR has total_steps = {} and cannot take step {}; give it the "
                 "number of optimizer steps of the whole training",
                 total_steps, t);
  const double highest = max_lr[group.group];
  const double first = highest / div_factor, last = first / final_div_factor;
  const double all = number(total_steps);

  const double high = max_momentum[group.group], low = base_momentum[group.group];

  struct Phase {
    double end, from_lr, to_lr, from_momentum, to_momentum;
  };
  const Phase up{pct_start * all - 1, first, highest, high, low};
  const std::vector<Phase> phases =
      three_phase ? std::vector<Phase>{up,
                                       {2 * pct_start * all - 2, highest, first, low, high},
                                       {all - 1, first, last, high, high}}
                  : std::vector<Phase>{up, {all - 1, highest, last, low, high}};
  double begin = 0;
  auto phase = phases.begin();
  for (; phase + 1 != phases.end() && number(t) > phase->end; ++phase) begin = phase->end;

  // A phase without length is over.
  const double share = phase->end == begin ? 1.0 : (number(t) - begin) / (phase->end - begin);
  group.lr = between(anneal_strategy, phase->from_lr, phase->to_lr, share);
  if (cycle_momentum)
    group.momentum = between(anneal_strategy, phase->from_momentum, phase->to_momentum, share);
}

void OneCycleRule::check(std::size_t groups) const {
  max_lr.check("max_lr", groups);
  base_momentum.check("base_momentum", groups);
  max_momentum.check("max_momentum", groups);
  const double least = std::ranges::min(max_lr.values());
  if (total_steps < 1 || !(pct_start >= 0 && pct_start <= 1) || !(least > 0))
    detail::fail(ErrorCategory::config,
                 "accel: OneCycleLR needs total_steps of at least 1, 0 <= pct_start <= 1 and a "
                 "max_lr above 0, and got {}, {} and {}",
                 total_steps, pct_start, least);
}

void CyclicRule::operator()(GroupRate& group, std::int64_t t) const {
  const double up = number(step_size_up), down = number(step_size_down.value_or(step_size_up));
  const double total = up + down, ratio = up / total;
  const double cycle = std::floor(1 + number(t) / total);
  const double x = 1.0 + number(t) / total - cycle;
  const double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  const double scale = mode == Cycle::triangular    ? 1.0
                       : mode == Cycle::triangular2 ? 1 / std::pow(2.0, cycle - 1)
                                                    : std::pow(gamma, number(t));
  const std::size_t i = group.group;
  group.lr = base_lr[i] + (max_lr[i] - base_lr[i]) * height * scale;
  if (cycle_momentum)
    group.momentum = max_momentum[i] - (max_momentum[i] - base_momentum[i]) * height * scale;
}

void CyclicRule::check(std::size_t groups) const {
  base_lr.check("base_lr", groups);
  max_lr.check("max_lr", groups);
  base_momentum.check("base_momentum", groups);
  max_momentum.check("max_momentum", groups);
  const double least = std::ranges::min(max_lr.values());
  if (step_size_up < 1 || step_size_down.value_or(1) < 1 || !(least > 0))
    detail::fail(ErrorCategory::config,
                 "accel: CyclicLR needs step_size_up and step_size_down of at least 1 and a max_lr "
                 "above 0, and got {}, {} and {}",
                 step_size_up, step_size_down.value_or(step_size_up), least);
}

}  // namespace accel
