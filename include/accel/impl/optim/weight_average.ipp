// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/weight_average.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/autocast.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace accel {

ExponentialMovingAverage::ExponentialMovingAverage(std::shared_ptr<torch::nn::Module> module,
                                                   double decay)
    : module_(std::move(module)), decay_(decay) {
  if (!(decay >= 0 && decay < 1))
    detail::fail(
        ErrorCategory::usage,
        "accel: the decay of a moving average is {}; give a number from 0 to below 1, such "
        "as 0.999",
        decay);
  for (const auto& [name, parameter] : unique_parameters(*module_)) {
    if (!parameter.is_floating_point()) continue;
    const bool narrow = at::isReducedFloatingType(parameter.scalar_type());
    parameters_.emplace_back(name, parameter);
    averages_.push_back(
        parameter.detach().to(narrow ? at::kFloat : parameter.scalar_type(), false, /*copy=*/true));
  }
}

void ExponentialMovingAverage::update() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const auto value = parameters_[i].second.detach().to(averages_[i].options());
    if (updates_ == 0)
      averages_[i].copy_(value);
    else
      averages_[i].lerp_(value, 1 - decay_);
  }
  ++updates_;
}

ExponentialMovingAverage::Applied::Applied(ExponentialMovingAverage& average) : average_(average) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < average_.averages_.size(); ++i) {
    auto parameter = average_.parameters_[i].second.detach();
    trained_.push_back(parameter.clone());
    parameter.copy_(average_.averages_[i]);
  }
  detail::forget_cast_weights();
}

ExponentialMovingAverage::Applied::~Applied() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < trained_.size(); ++i)
    average_.parameters_[i].second.detach().copy_(trained_[i]);
  detail::forget_cast_weights();
}

std::vector<NamedParameter> ExponentialMovingAverage::averages() const {
  std::vector<NamedParameter> named;
  for (size_t i = 0; i < averages_.size(); ++i)
    named.emplace_back(parameters_[i].first, averages_[i]);
  return named;
}

void ExponentialMovingAverage::load(const std::vector<NamedParameter>& averages,
                                    std::int64_t updates) {
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const auto& name = parameters_[i].first;
    const auto saved =
        std::ranges::find_if(averages, [&](const auto& item) { return item.first == name; });
    if (saved == averages.end())
      detail::fail(ErrorCategory::checkpoint,
                   "accel: the saved averages have none of '{}'; they are of another model", name);
    if (saved->second.sizes() != averages_[i].sizes())
      detail::fail(ErrorCategory::checkpoint,
                   "accel: the saved average of '{}' has the shape {}, and the parameter has {}",
                   name, c10::str(saved->second.sizes()), c10::str(averages_[i].sizes()));
    found.push_back(saved->second);
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < found.size(); ++i) averages_[i].copy_(found[i]);
  updates_ = updates;
}

}  // namespace accel
