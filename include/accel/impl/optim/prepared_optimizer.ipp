// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/prepared_optimizer.hpp>

#include <torch/optim/lbfgs.h>

namespace accel {

void detail::refuse_closures(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer))
    fail(ErrorCategory::usage,
         "accel: LBFGS evaluates the loss several times a step, which a window of micro-batches "
         "cannot do; use it unprepared, or prepare another optimizer");
}

void detail::refuse_repeated(const std::vector<at::Tensor>& earlier,
                             const std::vector<at::Tensor>& group, std::size_t number) {
  for (const auto& parameter : group)
    if (have_common(earlier, {parameter}))
      fail(ErrorCategory::usage,
           "accel: a parameter of shape {} is in parameter group {} and in an earlier one, and "
           "would "
           "be stepped twice; list it once",
           c10::str(parameter.sizes()), number);
}

}  // namespace accel
