// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What trainings are compared by when they are over.
#pragma once

#include <torch/nn/module.h>

#include <vector>

namespace accel::test {

/// Copies of a module's parameters, in their order.
inline std::vector<at::Tensor> parameter_values(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

}  // namespace accel::test
