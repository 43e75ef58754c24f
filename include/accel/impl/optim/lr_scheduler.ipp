// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/lr_scheduler.hpp>

namespace accel::detail {
namespace {
// A derived class may name a protected member of any object of its base through a member pointer.
struct StepCount : torch::optim::LRScheduler {
  static constexpr auto count() { return &StepCount::step_count_; }
};
}  // namespace

int64_t steps_of(const torch::optim::LRScheduler& schedule) {
  unsigned torch::optim::LRScheduler::* count = StepCount::count();
  return schedule.*count;
}

void set_steps_of(torch::optim::LRScheduler& schedule, int64_t steps) {
  unsigned torch::optim::LRScheduler::* count = StepCount::count();
  schedule.*count = static_cast<unsigned>(steps);
}

}  // namespace accel::detail
