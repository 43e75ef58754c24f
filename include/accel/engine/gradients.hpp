// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Parameters and their gradients as plain lists, and what a window's end does to them: one entry a
// parameter, whatever number of names it has. Comes before the engines and the prepared optimizer.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace accel {

/// A parameter and the first name it is registered under.
using NamedParameter = std::pair<std::string, at::Tensor>;

/// The parameters of a module in registration order, each once: LibTorch's `parameters()` lists a
/// tensor as often as it is registered, and an optimizer that was given it twice would update it
/// twice.
[[nodiscard]] std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module);

/// `tensors` without repeats of the same tensor; the first of each stays.
[[nodiscard]] std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& tensors);

/// Whether two lists hold the same tensors (not: equal values) in the same order.
[[nodiscard]] bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// Whether a tensor of one list is in the other.
[[nodiscard]] bool have_common(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// Casts the floating-point parameters and buffers of a module; integers (counters, indices) stay.
/// Parameters stay the same tensors, so that an optimizer that has them still does.
void cast_floating_(torch::nn::Module& module, c10::ScalarType type);

/// The leaves of a loss's graph: every tensor whose gradient its backward adds to.
[[nodiscard]] std::unordered_set<const c10::TensorImpl*> leaves_of(const at::Tensor& loss);

/// The defined gradients of some parameters.
[[nodiscard]] std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

/// Scales gradients in place so that their joint norm is at most `max_norm`, and returns the norm
/// before (0-dim). The factor is max_norm / (norm + 1e-6), at most 1, as
/// torch.nn.utils.clip_grad_norm_ has it. Gradients whose norm is not finite are left as they are,
/// so that one NaN does not become all of them; the returned norm tells.
at::Tensor clip_norm_(const std::vector<at::Tensor>& gradients, double max_norm,
                      double norm_type = 2.0);

/// The second half of that: scales gradients whose joint norm (0-dim) is known.
void scale_to_norm_(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                    double max_norm);

/// Clamps gradients in place to [-clip_value, clip_value].
void clip_value_(const std::vector<at::Tensor>& gradients, double clip_value);

}  // namespace accel
