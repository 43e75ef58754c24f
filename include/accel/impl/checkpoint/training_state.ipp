// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/checkpoint/training_state.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>

namespace accel {

void TrainingState::add_model(std::shared_ptr<torch::nn::Module> model) {
  if (std::find(models_.begin(), models_.end(), model) == models_.end()) models_.push_back(std::move(model));
}

void TrainingState::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                  std::function<ParameterPairs()> parameters) {
  for (const auto& known : optimizers_)
    if (known.optimizer == optimizer) return;
  optimizers_.push_back({std::move(optimizer), std::move(parameters)});
}

void TrainingState::add_loader(std::shared_ptr<LoaderCursor> cursor) { loaders_.push_back(std::move(cursor)); }

void TrainingState::add_schedule(std::shared_ptr<void> key, SavedValue value) {
  for (const auto& known : schedules_)
    if (known.first == key) return;
  schedules_.emplace_back(std::move(key), std::move(value));
}

void TrainingState::add_value(std::string name, SavedValue value) {
  for (const auto& known : values_)
    if (known.first == name)
      detail::fail(ErrorCategory::usage, "accel: a value named '{}' is registered for checkpointing already", name);
  values_.emplace_back(std::move(name), std::move(value));
}

}  // namespace accel
