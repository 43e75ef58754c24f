// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Learning-rate schedules, and the handle that steps one when the optimizer steps. LibTorch has
// StepLR and ReduceLROnPlateau; its StepLR decays one step later than Python's. LambdaLR here has
// Python's values: any function of the number of steps. Comes after prepared_optimizer.hpp.
#pragma once

#include <accel/engine/context.hpp>
#include <accel/engine/objects.hpp>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace accel {

/// What can be prepared as a schedule: it has `step()`, and LibTorch's base class or a state of our
/// kind.
template <class T>
concept LRSchedulerLike = std::derived_from<T, torch::optim::LRScheduler> || requires(T& schedule) {
  schedule.step();
  { schedule.last_epoch() } -> std::convertible_to<int64_t>;
  schedule.load_last_epoch(int64_t{});
};

/// A schedule as a user may hand it over: an object or a pointer.
template <class T>
concept LRSchedulerGiven = LRSchedulerLike<T> || (requires { typename detail::pointee<T>::type; } &&
                                                  LRSchedulerLike<typename T::element_type>);

/// Each group's learning rate is its initial one times `factor(t)`, where t counts calls of `step`;
/// at construction t is 0. Formula and order of calls are those of
/// torch.optim.lr_scheduler.LambdaLR.
class LambdaLR {
 public:
  using Factor = std::function<double(int64_t)>;

  /// The optimizer must outlive the schedule. Its present learning rates are the initial ones.
  LambdaLR(torch::optim::Optimizer& optimizer, Factor factor);

  void step();

  /// Steps taken so far.
  [[nodiscard]] int64_t last_epoch() const noexcept { return last_epoch_; }
  /// The optimizer whose rates it sets.
  [[nodiscard]] const torch::optim::Optimizer* optimizer() const noexcept { return optimizer_; }
  /// The present learning rate of each group.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  /// Continues where a saved schedule stood.
  void load_last_epoch(int64_t last_epoch);

 private:
  void apply();
  torch::optim::Optimizer* optimizer_;
  Factor factor_;
  std::vector<double> initial_;
  int64_t last_epoch_ = 0;
};

/// Multiplies by `gamma` every `step_size` steps, as torch.optim.lr_scheduler.StepLR.
[[nodiscard]] LambdaLR step_lr(torch::optim::Optimizer& optimizer, int64_t step_size,
                               double gamma = 0.1);

/// From the initial rate to 0 along a half cosine over `total_steps`, after a linear warm-up from 0
/// over `warmup_steps`: 0.5 (1 + cos(pi p)), p the share of the steps after the warm-up. The
/// formula of transformers' get_cosine_schedule_with_warmup with half a cycle.
[[nodiscard]] LambdaLR cosine_schedule(torch::optim::Optimizer& optimizer, int64_t total_steps,
                                       int64_t warmup_steps = 0);

/// From the initial rate to 0 along a line over `total_steps`, after a linear warm-up.
[[nodiscard]] LambdaLR linear_schedule(torch::optim::Optimizer& optimizer, int64_t total_steps,
                                       int64_t warmup_steps = 0);

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
  /// optimizer step; `step_scheduler_once_per_process` gives Accelerate's count. With
  /// `step_scheduler_with_optimizer` off, always one step.
  void step() {
    const auto& options = context_->options;
    int64_t count = 1;
    if (options.step_scheduler_with_optimizer) {
      if (!context_->step.sync_gradients()) return;
      if (optimizer_skipped()) return;
      if (options.step_scheduler_once_per_process) count = context_->state.num_processes();
    }
    for (; count > 0; --count) schedule_->step();
  }

  [[nodiscard]] Schedule& unwrap() const noexcept { return *schedule_; }
  Schedule* operator->() const noexcept { return schedule_.get(); }

 private:
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
