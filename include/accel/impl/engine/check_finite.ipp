// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/check_finite.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/gradients.hpp>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <limits>

namespace accel {
namespace {

/// A tensor that can hold a NaN, dense: the values of a sparse one.
std::optional<at::Tensor> numbers_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return std::nullopt;
  if (!tensor.is_floating_point() && !tensor.is_complex()) return std::nullopt;
  auto values = tensor.detach();
  if (values.is_sparse()) values = values.coalesce().values();
  if (values.numel() == 0) return std::nullopt;
  return values;
}

bool all_finite(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return true;
  // The largest magnitude: a NaN or an infinity stays one, and nothing else becomes one, as a sum of
  // large values might.
  auto largest = at::_foreach_norm(tensors, std::numeric_limits<double>::infinity());
  for (auto& each : largest) each = each.to(largest.front().device(), at::kDouble);
  return at::isfinite(at::stack(largest)).all().item<bool>();
}

std::optional<NonFinite> describe(const std::string& name, bool gradient,
                                  const at::Tensor& tensor) {
  const auto values = numbers_of(tensor);
  if (!values) return std::nullopt;
  const auto bad = at::isfinite(*values).logical_not();
  const auto count = bad.sum().item<std::int64_t>();
  if (count == 0) return std::nullopt;
  const auto flat = bad.reshape({-1}).to(at::kByte).argmax().item<std::int64_t>();
  NonFinite found{name, gradient, count, values->numel(), std::vector<std::int64_t>(values->dim())};
  auto rest = flat;
  for (auto dim = values->dim() - 1; dim >= 0; --dim) {
    found.index[static_cast<std::size_t>(dim)] = rest % values->size(dim);
    rest /= values->size(dim);
  }
  const auto value = values->reshape({-1})[flat];
  found.value = (value.is_complex() ? value.abs() : value).item<double>();
  return found;
}

}  // namespace

std::optional<NonFinite> find_non_finite(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto parameters = unique_parameters(module);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters)
    for (const auto& tensor : {parameter, parameter.grad()})
      if (auto values = numbers_of(tensor)) tensors.push_back(*std::move(values));
  if (all_finite(tensors)) return std::nullopt;
  for (const auto& [name, parameter] : parameters) {
    if (auto found = describe(name, /*gradient=*/false, parameter)) return found;
    if (auto found = describe(name, /*gradient=*/true, parameter.grad())) return found;
  }
  return std::nullopt;
}

void check_finite(const torch::nn::Module& module, std::int64_t step, int rank) {
  const auto found = find_non_finite(module);
  if (!found) return;
  detail::fail(
      ErrorCategory::numeric,
      "accel: rank {}: step {}: {}{} has {} of {} values that are not finite, the first at "
      "[{}]: {}; lower the learning rate, clip_grad_norm_, or train in bf16 or fp32",
      rank, step, found->gradient ? "the gradient of " : "", found->name, found->count, found->size,
      fmt::join(found->index, ", "), found->value);
}

}  // namespace accel
