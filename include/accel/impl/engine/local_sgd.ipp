// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/local_sgd.hpp>

#include <accel/engine/autocast.hpp>
#include <accel/engine/gradients.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace accel {

void average_tensors(const Communicator& communicator, const std::vector<at::Tensor>& tensors,
                     const CallSite& where) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  // In an order that is the same on every rank: that of the list.
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_floating_point()) continue;
    const auto group = std::ranges::find_if(groups, [&](const auto& each) {
      return each.front().scalar_type() == tensor.scalar_type() &&
             each.front().device() == tensor.device();
    });
    if (group == groups.end())
      groups.push_back({tensor});
    else
      group->push_back(tensor);
  }
  for (const auto& group : groups) {
    std::vector<at::Tensor> flat;
    for (const auto& tensor : group) flat.push_back(tensor.detach().reshape({-1}));
    const auto mean = communicator.all_reduce(at::cat(flat), Reduction::mean, where);
    std::int64_t begin = 0;
    for (const auto& tensor : group) {
      tensor.detach().copy_(mean.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
  detail::forget_cast_weights();
}

void average_parameters(const Communicator& communicator, const torch::nn::Module& module,
                        const CallSite& where) {
  average_tensors(communicator, unique_tensors(module.parameters()), where);
}

LocalSgd::LocalSgd(std::function<void(const CallSite&)> average, std::int64_t local_sgd_steps,
                   int rank)
    : average_(std::move(average)), local_sgd_steps_(local_sgd_steps) {
  if (local_sgd_steps < 1)
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: local_sgd averages parameters every {} steps; give a number from "
                 "1",
                 rank, local_sgd_steps);
}

void LocalSgd::step(const CallSite& where) {
  if (++steps_ % local_sgd_steps_ == 0) average_(where);
}

void LocalSgd::finish(const CallSite& where) { average_(where); }

}  // namespace accel
