// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's fused optimizer kernels, driven from the user's own torch::optim object: its options
// and groups are read at every step and its state is kept where it keeps it, so that its own step()
// and its serialization stay right. The kernels are those of Python's fused=True and several times
// faster than torch::optim's loop over parameters. Comes before prepared_optimizer.hpp, which calls
// this in place of the object's step().
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <unordered_map>
#include <vector>

namespace accel {

/// Whether a fused kernel exists for an optimizer type.
template <class Optimizer>
inline constexpr bool has_fused_kernel = false;
template <>
inline constexpr bool has_fused_kernel<torch::optim::Adagrad> = true;
template <>
inline constexpr bool has_fused_kernel<torch::optim::Adam> = true;
template <>
inline constexpr bool has_fused_kernel<torch::optim::AdamW> = true;
template <>
inline constexpr bool has_fused_kernel<torch::optim::SGD> = true;

/// Lists that a kernel call takes, kept between steps so that a step allocates nothing.
class FusedScratch {
 public:
  void clear() {
    parameters.clear();
    gradients.clear();
    first.clear();
    second.clear();
    largest.clear();
    steps.clear();
  }
  /// The 0-dim fp32 tensor that holds a parameter's step count for the kernel, set to `step`.
  const at::Tensor& step_tensor(const at::Tensor& parameter, int64_t step);

  std::vector<at::Tensor> parameters, gradients, first, second, largest, steps;

 private:
  std::unordered_map<const c10::TensorImpl*, at::Tensor> step_tensors_;
};

/// One step. Parameters without a gradient are passed over, as the object's own step() does. A
/// group that the kernel does not take (sparse or complex gradients, several devices or dtypes)
/// makes the whole step fall back to the object's own.
void fused_step(torch::optim::Adagrad& optimizer, FusedScratch& scratch);
void fused_step(torch::optim::Adam& optimizer, FusedScratch& scratch);
void fused_step(torch::optim::AdamW& optimizer, FusedScratch& scratch);
void fused_step(torch::optim::SGD& optimizer, FusedScratch& scratch);

}  // namespace accel
