// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/local_sgd.hpp>

#include <accel/engine/gradients.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace accel {

void average_parameters(const Communicator& communicator, const torch::nn::Module& module,
                        const CallSite& where) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  // In an order that is the same on every rank: that of the parameters.
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& parameter : unique_tensors(module.parameters())) {
    if (!parameter.defined() || !parameter.is_floating_point()) continue;
    const auto group = std::ranges::find_if(groups, [&](const auto& each) {
      return each.front().scalar_type() == parameter.scalar_type() &&
             each.front().device() == parameter.device();
    });
    if (group == groups.end())
      groups.push_back({parameter});
    else
      group->push_back(parameter);
  }
  for (const auto& group : groups) {
    std::vector<at::Tensor> flat;
    for (const auto& parameter : group) flat.push_back(parameter.detach().reshape({-1}));
    const auto mean = communicator.all_reduce(at::cat(flat), Reduction::mean, where);
    std::int64_t begin = 0;
    for (const auto& parameter : group) {
      parameter.detach().copy_(mean.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
}

LocalSgd::LocalSgd(const Communicator& communicator, const torch::nn::Module& module,
                   std::int64_t local_sgd_steps)
    : communicator_(communicator), module_(module), local_sgd_steps_(local_sgd_steps) {
  if (local_sgd_steps < 1)
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: local_sgd averages parameters every {} steps; give a number from "
                 "1",
                 communicator_.rank(), local_sgd_steps);
}

void LocalSgd::step(const CallSite& where) {
  if (++steps_ % local_sgd_steps_ == 0) average_parameters(communicator_, module_, where);
}

void LocalSgd::finish() { average_parameters(communicator_, module_); }

}  // namespace accel
