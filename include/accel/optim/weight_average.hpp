// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// An exponential moving average of a module's parameters (EMA), to evaluate or to keep in place of
// the trained ones. Knows nothing of optimizers: the loop says when a step was made. Comes after
// engine/gradients.hpp.
#pragma once

#include <accel/engine/gradients.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace accel {

/// After each step every average moves a little towards its parameter:
///
///     average += (1 - decay) (parameter - average)
///
/// The first update copies. Formula, first step and buffers (the module's present ones) are those of
/// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. Ranks that hold equal parameters
/// hold equal averages, and nothing is communicated. What is averaged is what the module computes
/// with: 16-bit parameters, not the fp32 copies that an optimizer may have of them.
///
///     accel::ExponentialMovingAverage ema(net, 0.999);
///     ...  optimizer.step(); if (accelerator.sync_gradients()) ema.update();
///     { const auto averaged = ema.apply(); evaluate(model); }   // the trained ones come back
class ExponentialMovingAverage {
 public:
  /// Averages the floating-point parameters that `module` has now, in their own type or, if they are
  /// of 16 bits, in fp32. Throws Error(usage) for a decay outside [0, 1).
  explicit ExponentialMovingAverage(std::shared_ptr<torch::nn::Module> module,
                                    double decay = 0.999);

  /// A step was made.
  void update();

  /// A scope in which the module computes with the averages. The parameters stay the same tensors:
  /// values are exchanged, and exchanged back at the end; an optimizer's fp32 copies are not touched.
  /// Do not train in it.
  class Applied {
   public:
    explicit Applied(ExponentialMovingAverage& average);
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;
    ~Applied();

   private:
    ExponentialMovingAverage& average_;
    std::vector<at::Tensor> trained_;
  };
  [[nodiscard]] Applied apply() { return Applied(*this); }

  /// Updates so far.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  /// The averages under the parameters' names, to be saved and, by `load`, restored.
  [[nodiscard]] std::vector<NamedParameter> averages() const;
  /// Continues where a saved average stood. Throws Error(checkpoint) that names what is missing or
  /// of another shape, and changes nothing then.
  void load(const std::vector<NamedParameter>& averages, std::int64_t updates);

 private:
  std::shared_ptr<torch::nn::Module> module_;
  double decay_;
  std::vector<NamedParameter> parameters_;
  std::vector<at::Tensor> averages_;
  std::int64_t updates_ = 0;
};

}  // namespace accel
