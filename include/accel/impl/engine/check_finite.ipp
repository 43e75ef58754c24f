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

namespace {

std::string text_of(const NonFinite& found) {
  return fmt::format("{}{} has {} of {} values that are not finite, the first at [{}]: {}",
                     found.gradient ? "the gradient of " : "", found.name, found.count, found.size,
                     fmt::join(found.index, ", "), found.value);
}

[[noreturn]] void fail_as_non_finite(int rank, std::int64_t step, const std::string& what) {
  detail::fail(ErrorCategory::numeric,
               "accel: rank {}: step {}: {}; lower the learning rate, clip_grad_norm_, or train in "
               "bf16 or fp32",
               rank, step, what);
}

}  // namespace

void check_finite(const torch::nn::Module& module, std::int64_t step, int rank) {
  if (const auto found = find_non_finite(module)) fail_as_non_finite(rank, step, text_of(*found));
}

GradientWatch::GradientWatch(const torch::nn::Module& module) {
  for (const auto& [name, parameter] : unique_parameters(module)) {
    if (!parameter.requires_grad()) continue;
    auto finite = std::make_shared<at::Tensor>();
    // The parameter owns its hooks.
    const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(
        parameter.getIntrusivePtr());
    const auto look = [finite, weak](const at::Tensor& gradient) {
      const at::NoGradGuard no_grad;
      const auto values = numbers_of(gradient);
      const at::Tensor self(weak.lock());
      if (!values || !self.defined()) return;
      const auto now = at::isfinite(*values).all();
      const bool adds = self.grad().defined() && finite->defined();
      *finite = adds ? finite->logical_and(now) : now;
    };
    watched_.emplace(name, Watched{parameter, parameter.register_hook(look), finite});
  }
}

GradientWatch::~GradientWatch() {
  for (auto& [name, each] : watched_) each.parameter.remove_hook(each.hook);
}

bool GradientWatch::was_finite(const std::string& parameter) const {
  const auto found = watched_.find(parameter);
  return found == watched_.end() || !found->second.finite->defined() ||
         found->second.finite->item<bool>();
}

void check_finite_together(const Communicator& communicator, const std::optional<NonFinite>& found,
                           const GradientWatch* watch, std::int64_t step, const CallSite& where) {
  if (communicator.all_sum(found ? 1 : 0, where) == 0) return;
  const bool from_here = found && found->gradient && watch && !watch->was_finite(found->name);
  const auto texts = communicator.all_gather_bytes(found ? text_of(*found) : std::string());
  const auto sources = communicator.all_gather_bytes(from_here ? "here" : "");
  std::vector<int> on, from;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (!texts[static_cast<std::size_t>(rank)].empty()) on.push_back(rank);
    if (!sources[static_cast<std::size_t>(rank)].empty()) from.push_back(rank);
  }
  const auto& named = from.empty() ? on : from;
  fail_as_non_finite(communicator.rank(), step,
                     fmt::format("{}, {} rank{} {}", texts[static_cast<std::size_t>(named.front())],
                                 from.empty() ? "on" : "which came from",
                                 named.size() == 1 ? "" : "s", fmt::join(named, ", ")));
}

}  // namespace accel
