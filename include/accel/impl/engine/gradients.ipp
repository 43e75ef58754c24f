// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/gradients.hpp>

#include <accel/engine/norms.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>

namespace accel {

std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      unique.emplace_back(item.key(), item.value());
  return unique;
}

std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) unique.push_back(tensor);
  return unique;
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b,
                            [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

bool have_common(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& tensor : a) known.insert(tensor.unsafeGetTensorImpl());
  return std::ranges::any_of(
      b, [&](const at::Tensor& tensor) { return known.contains(tensor.unsafeGetTensorImpl()); });
}

void cast_floating_(torch::nn::Module& module, c10::ScalarType type) {
  const auto cast = [type](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.detach().to(type));
  };
  for (const auto& parameter : module.parameters()) cast(parameter);
  for (const auto& buffer : module.buffers()) cast(buffer);
}

std::unordered_set<const c10::TensorImpl*> leaves_of(const at::Tensor& loss) {
  using torch::autograd::AccumulateGrad;
  using torch::autograd::Node;
  std::unordered_set<const c10::TensorImpl*> leaves;
  std::vector<const Node*> open{loss.grad_fn().get()};
  std::unordered_set<const Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    if (!node) continue;
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node))
      leaves.insert(leaf->variable.unsafeGetTensorImpl());
    for (const auto& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        open.push_back(edge.function.get());
  }
  return leaves;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

at::Tensor clip_norm_(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type) {
  auto norm = joint_norm(gradients, norm_type);
  scale_to_norm_(gradients, norm, max_norm);
  return norm;
}

void scale_to_norm_(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                    double max_norm) {
  if (gradients.empty()) return;
  const at::NoGradGuard no_grad;
  auto factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  factor = at::where(at::isfinite(norm), factor, at::ones_like(factor));
  at::_foreach_mul_(gradients, factor);
}

void clip_value_(const std::vector<at::Tensor>& gradients, double clip_value) {
  at::NoGradGuard no_grad;
  if (!gradients.empty()) {
    at::_foreach_clamp_min_(gradients, -clip_value);
    at::_foreach_clamp_max_(gradients, clip_value);
  }
}

}  // namespace accel
