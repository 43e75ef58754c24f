// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether a model is still made of numbers: called after a backward or a step, it stops a run at the
// step where the first NaN or infinity came up, instead of where the loss shows it. Whether a state
// is worth saving is asked elsewhere (checkpoint/finite.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// The first tensor of a model with values that are not finite.
struct NonFinite {
  std::string name;                 ///< of the parameter
  bool gradient = false;            ///< whether it is the parameter's gradient
  std::int64_t count = 0;           ///< of its values that are not finite
  std::int64_t size = 0;            ///< of all its values
  std::vector<std::int64_t> index;  ///< of the first of them
  double value = 0;                 ///< what stands there: NaN, or an infinity
};

/// The first parameter of a module, or its gradient, in the order in which they are registered, that
/// is not finite; none if all are. A model that is finite costs one pass over its values and one
/// number from the device. Local.
[[nodiscard]] std::optional<NonFinite> find_non_finite(const torch::nn::Module& module);

/// Throws Error(numeric) that names rank, step, parameter, the number of values and the first index,
/// unless all parameters of a module and their gradients are finite. Under a loss scale, call it
/// after the step and `zero_grad`: before, gradients may overflow, which the scaler answers by itself.
/// Local; after a reduction every rank has the same values and throws.
void check_finite(const torch::nn::Module& module, std::int64_t step, int rank = 0);

}  // namespace accel
