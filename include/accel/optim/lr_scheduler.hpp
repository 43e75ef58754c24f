// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What counts as a schedule, and the handle that steps one when the optimizer steps. The schedules
// themselves are in schedule.hpp (of steps), plateau.hpp (of a metric) and get_scheduler.hpp (by
// name), which this file opens; LibTorch's are taken too. Comes after prepared_optimizer.hpp.
#pragma once

#include <accel/engine/context.hpp>
#include <accel/engine/objects.hpp>
#include <accel/optim/get_scheduler.hpp>
#include <accel/optim/plateau.hpp>
#include <accel/optim/schedule.hpp>

#include <nlohmann/json.hpp>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

namespace accel {

/// A schedule that is saved as a value of its own.
template <class T>
concept HasScheduleState = requires(T& schedule, const nlohmann::json& state) {
  { std::as_const(schedule).state() } -> std::same_as<nlohmann::json>;
  schedule.load_state(state);
};

/// A schedule that is saved as the number of its steps.
template <class T>
concept HasLastEpoch = requires(T& schedule) {
  { schedule.last_epoch() } -> std::convertible_to<int64_t>;
  schedule.load_last_epoch(int64_t{});
};

/// A schedule of steps, and one of a metric.
template <class T>
concept StepsAlone = requires(T& schedule) { schedule.step(); };
template <class T>
concept StepsOnMetric = requires(T& schedule, double metric) { schedule.step(metric); };

/// What can be prepared as a schedule: LibTorch's base class, or a `step()` or `step(metric)` and
/// something to save.
template <class T>
concept LRSchedulerLike =
    std::derived_from<T, torch::optim::LRScheduler> ||
    ((StepsAlone<T> || StepsOnMetric<T>) && (HasScheduleState<T> || HasLastEpoch<T>));

/// A schedule as a user may hand it over: an object or a pointer.
template <class T>
concept LRSchedulerGiven = LRSchedulerLike<T> || (requires { typename detail::pointee<T>::type; } &&
                                                  LRSchedulerLike<typename T::element_type>);

namespace detail {
/// The step count of one of LibTorch's schedules, which it does not show.
int64_t steps_of(const torch::optim::LRScheduler& schedule);
void set_steps_of(torch::optim::LRScheduler& schedule, int64_t steps);
}  // namespace detail

/// What `prepare` returns for a schedule. Copies share it.
template <class Schedule, class Context>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<Schedule> schedule, std::shared_ptr<Context> context)
      : schedule_(std::move(schedule)), context_(std::move(context)) {}

  /// Steps if the optimizer stepped: not inside a window, not after a skipped step. One step an
  /// optimizer step; `step_scheduler_once_per_process` gives Accelerate's count, which ends where
  /// the schedule does. With `step_scheduler_with_optimizer` off, always one step.
  void step()
    requires StepsAlone<Schedule>
  {
    const auto& options = context_->options;
    if (!options.step_scheduler_with_optimizer) return schedule_->step();
    if (!optimizer_stepped()) return;
    if (!options.step_scheduler_once_per_process) return schedule_->step();
    const int64_t steps = context_->split_batches ? 1 : context_->state.num_processes();
    for (int64_t i = 0; i < steps; ++i) {
      if constexpr (requires { schedule_->total_steps(); })
        if (schedule_->last_epoch() >= schedule_->total_steps()) return;
      schedule_->step();
    }
  }

  /// Gives the schedule a metric, which must be the same on every rank. Inside `accumulate` it is
  /// taken where `step()` would step; outside, where it is of an epoch or a validation, always. It
  /// is one metric on any number of processes.
  template <class Metric>
  void step(const Metric& metric)
    requires requires(Schedule& schedule) { schedule.step(metric); }
  {
    if (context_->options.step_scheduler_with_optimizer && context_->inside() &&
        !optimizer_stepped())
      return;
    schedule_->step(metric);
  }

  [[nodiscard]] Schedule& unwrap() const noexcept { return *schedule_; }
  [[nodiscard]] const std::shared_ptr<Schedule>& shared() const noexcept { return schedule_; }
  Schedule* operator->() const noexcept { return schedule_.get(); }

 private:
  [[nodiscard]] bool optimizer_stepped() const {
    return context_->step.sync_gradients() && !optimizer_skipped();
  }

  /// Whether the schedule's optimizer skipped its last step; where that is not known (LibTorch's
  /// schedules do not say, and it may not have been prepared), whether any did.
  [[nodiscard]] bool optimizer_skipped() const {
    if constexpr (requires { schedule_->optimizer(); })
      for (const auto& optimizer : context_->optimizers)
        if (optimizer->optimizer == schedule_->optimizer()) return optimizer->skipped;
    return std::any_of(context_->optimizers.begin(), context_->optimizers.end(),
                       [](const auto& optimizer) { return optimizer->skipped; });
  }

  std::shared_ptr<Schedule> schedule_;
  std::shared_ptr<Context> context_;
};

template <class T>
inline constexpr bool is_prepared_scheduler = false;
template <class S, class C>
inline constexpr bool is_prepared_scheduler<PreparedScheduler<S, C>> = true;

}  // namespace accel
