// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether a model is still made of numbers: called after a backward or a step, it stops a run at the
// step where the first NaN or infinity came up, instead of where the loss shows it. Whether a state
// is worth saving is asked elsewhere (checkpoint/finite.hpp).
#pragma once

#include <accel/comm/communicator.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
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
/// Local; the accelerator's member of this name is the same for all ranks together.
void check_finite(const torch::nn::Module& module, std::int64_t step, int rank = 0);

/// Looks at the gradients of a module as they come in, before they are reduced over the ranks: after
/// that every rank has the NaN of one. A pass over the gradients in each backward, and nothing that
/// waits for the device.
class GradientWatch {
 public:
  explicit GradientWatch(const torch::nn::Module& module);
  ~GradientWatch();
  GradientWatch(const GradientWatch&) = delete;
  GradientWatch& operator=(const GradientWatch&) = delete;

  /// Whether what this rank has added to a parameter's gradient since it was cleared (to none) was
  /// finite. True for a parameter that is not watched.
  [[nodiscard]] bool was_finite(const std::string& parameter) const;

 private:
  struct Watched {
    at::Tensor parameter;
    unsigned hook;
    std::shared_ptr<at::Tensor> finite;  ///< 0-dim bool; undefined before the first gradient
  };
  std::map<std::string, Watched> watched_;
};

/// Throws check_finite's error on every rank where one of them has found something: the words of the
/// first that has, and which ranks it is on; or, where a watch knows, whose gradients it came from.
/// Every rank must call this.
void check_finite_together(const Communicator& communicator, const std::optional<NonFinite>& found,
                           const GradientWatch* watch, std::int64_t step, const CallSite& where);

}  // namespace accel
