// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The formulas are those of transformers 4.57 (src/transformers/optimization.py, Apache-2.0).
#include <accel/optim/get_scheduler.hpp>

#include <accel/detail/error.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace accel {
namespace {

using std::numbers::pi;

double number(std::int64_t count) { return static_cast<double>(count); }

void check_steps(std::int64_t total, std::int64_t warmup) {
  if (total < 1 || warmup < 0 || warmup > total)
    detail::fail(ErrorCategory::config,
                 "accel: a schedule needs total_steps >= 1 and 0 <= warmup_steps <= total_steps "
                 "(num_training_steps and num_warmup_steps of get_scheduler), and got {} and {}",
                 total, warmup);
}

/// The warm-up's factor below `warmup`, then `after(t)`.
template <class After>
auto warmed(std::int64_t warmup, After after) {
  return [=](std::int64_t t) {
    return t < warmup ? number(t) / number(std::max<std::int64_t>(1, warmup)) : after(t);
  };
}

/// What `get_scheduler` was given, checked.
struct Request {
  torch::optim::Optimizer& optimizer;
  std::int64_t warmup, total;
  const SchedulerOptions& options;

  /// The factor as a function of the share of the steps after the warm-up that are taken.
  template <class After>
  [[nodiscard]] LambdaLR with_progress(After after) const {
    const double steps = number(std::max<std::int64_t>(1, total - warmup));
    return {optimizer, warmed(warmup, [=, w = warmup](std::int64_t t) {
              return after(number(t - w) / steps);
            })};
  }
};

LambdaLR constant(const Request& request) {
  return {request.optimizer, warmed(request.warmup, [](std::int64_t) { return 1.0; })};
}

LambdaLR linear(const Request& request) {
  const std::int64_t total = request.total;
  const double steps = number(std::max<std::int64_t>(1, total - request.warmup));
  return {request.optimizer, warmed(request.warmup, [=](std::int64_t t) {
            return std::max(0.0, number(total - t) / steps);
          })};
}

LambdaLR cosine(const Request& request) {
  return request.with_progress([waves = request.options.num_cycles.value_or(0.5)](double progress) {
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * waves * 2.0 * progress)));
  });
}

LambdaLR cosine_with_restarts(const Request& request) {
  return request.with_progress([starts = request.options.num_cycles.value_or(1)](double progress) {
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * std::fmod(starts * progress, 1.0))));
  });
}

LambdaLR polynomial(const Request& request) {
  const double first = request.optimizer.defaults().get_lr(), last = request.options.lr_end;
  if (!(first > last))
    detail::fail(ErrorCategory::config,
                 "accel: the schedule polynomial needs lr_end below the optimizer's lr, and got {} "
                 "and {}",
                 last, first);
  return {request.optimizer,
          warmed(request.warmup, [=, power = request.options.power, warmup = request.warmup,
                                  total = request.total](std::int64_t t) {
            if (t > total || warmup == total) return last / first;
            const double remaining = 1 - number(t - warmup) / number(total - warmup);
            return ((first - last) * std::pow(remaining, power) + last) / first;
          })};
}

LambdaLR inverse_sqrt(const Request& request) {
  const std::int64_t usual = request.warmup > 0 ? request.warmup : 10'000;
  const std::int64_t timescale = request.options.timescale.value_or(usual);
  if (timescale < 1)
    detail::fail(ErrorCategory::config,
                 "accel: the schedule inverse_sqrt needs a timescale of at least 1, and got {}",
                 timescale);
  return {request.optimizer, warmed(request.warmup, [=, warmup = request.warmup](std::int64_t t) {
            return 1.0 / std::sqrt(number(t + (timescale - warmup)) / number(timescale));
          })};
}

struct Named {
  std::string_view name;
  LambdaLR (*make)(const Request&);
  bool warms_up, ends;  // whether it needs num_warmup_steps, num_training_steps
};

constexpr std::array<Named, 7> schedules{
    {{"constant", constant, false, false},
     {"constant_with_warmup", constant, true, false},
     {"linear", linear, true, true},
     {"cosine", cosine, true, true},
     {"cosine_with_restarts", cosine_with_restarts, true, true},
     {"polynomial", polynomial, true, true},
     {"inverse_sqrt", inverse_sqrt, true, false}}};

}  // namespace

LambdaLR get_scheduler(std::string_view name, torch::optim::Optimizer& optimizer,
                       std::optional<std::int64_t> num_warmup_steps,
                       std::optional<std::int64_t> num_training_steps,
                       const SchedulerOptions& options) {
  const auto found = std::ranges::find(schedules, name, &Named::name);
  if (found == schedules.end()) {
    std::array<std::string_view, schedules.size()> names;
    std::ranges::transform(schedules, names.begin(), &Named::name);
    detail::fail(ErrorCategory::config, "accel: there is no schedule named '{}'; use one of {}",
                 name, fmt::join(names, ", "));
  }
  std::vector<std::string_view> missing;
  if (found->warms_up && !num_warmup_steps) missing.emplace_back("num_warmup_steps");
  if (found->ends && !num_training_steps) missing.emplace_back("num_training_steps");
  if (!missing.empty())
    detail::fail(ErrorCategory::config, "accel: the schedule {} needs {}; pass it to get_scheduler",
                 name, fmt::join(missing, " and "));
  const std::int64_t warmup = found->warms_up ? *num_warmup_steps : 0;
  const std::int64_t total = found->ends ? *num_training_steps : std::max<std::int64_t>(1, warmup);
  check_steps(total, warmup);
  return found->make({optimizer, warmup, total, options});
}

LambdaLR cosine_schedule(torch::optim::Optimizer& optimizer, std::int64_t total_steps,
                         std::int64_t warmup_steps) {
  check_steps(total_steps, warmup_steps);
  return Request{optimizer, warmup_steps, total_steps, {}}.with_progress([](double progress) {
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * std::min(progress, 1.0))));
  });
}

LambdaLR linear_schedule(torch::optim::Optimizer& optimizer, std::int64_t total_steps,
                         std::int64_t warmup_steps) {
  return get_scheduler("linear", optimizer, warmup_steps, total_steps);
}

double scale_learning_rate(torch::optim::Optimizer& optimizer, BatchScaling rule,
                           std::int64_t global_batch, std::int64_t base_batch) {
  if (global_batch < 1 || base_batch < 1)
    detail::fail(ErrorCategory::config,
                 "accel: scale_learning_rate needs batches of at least 1 sample, and got {} and {}",
                 global_batch, base_batch);
  const double ratio = number(global_batch) / number(base_batch);
  const double factor = rule == BatchScaling::linear ? ratio : std::sqrt(ratio);
  for (auto& group : optimizer.param_groups())
    group.options().set_lr(group.options().get_lr() * factor);
  return factor;
}

}  // namespace accel
