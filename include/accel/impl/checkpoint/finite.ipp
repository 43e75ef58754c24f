// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/finite.hpp.
#include <accel/checkpoint/finite.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

namespace accel {

std::vector<std::string> non_finite_names(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    const bool has_numbers = tensor.defined() && !tensor.is_meta() &&
                             (tensor.is_floating_point() || tensor.is_complex());
    if (has_numbers && !at::isfinite(tensor).all().item<bool>()) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace accel
