// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/norms.hpp>

#include <accel/engine/gradients.hpp>

#include <ATen/ATen.h>

namespace accel {

at::Tensor joint_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  if (tensors.empty()) return at::zeros({});
  const at::NoGradGuard no_grad;
  auto norms = at::_foreach_norm(tensors, norm_type);
  for (auto& norm : norms) norm = norm.to(norms.front().device());
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor grad_norm(const torch::nn::Module& module, double norm_type) {
  return joint_norm(gradients_of(unique_tensors(module.parameters())), norm_type);
}

at::Tensor parameter_norm(const torch::nn::Module& module, double norm_type) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : unique_tensors(module.parameters()))
    if (parameter.defined()) values.push_back(parameter.detach());
  return joint_norm(values, norm_type);
}

}  // namespace accel
