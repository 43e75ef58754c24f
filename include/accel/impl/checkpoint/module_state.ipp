// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/module_state.hpp.
#include <accel/checkpoint/module_state.hpp>

#include <accel/detail/error.hpp>

#include <torch/nn/module.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

namespace accel {
namespace detail {
namespace {

// One tensor of a module with all the names that it is registered under, in order of registration.
struct RegisteredTensor {
  at::Tensor tensor;
  std::vector<std::string> names;
};

// Parameters, then buffers. C++ modules list a shared tensor, or a shared submodule, once for each
// registration.
std::vector<RegisteredTensor> registered_tensors(const torch::nn::Module& module) {
  std::vector<RegisteredTensor> registered;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      const auto [place, is_new] =
          places.emplace(item.value().unsafeGetTensorImpl(), registered.size());
      if (is_new) {
        registered.push_back({item.value(), {}});
      }
      registered[place->second].names.push_back(item.key());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return registered;
}

// The file's tensor for a name: under the name itself, or under the one that the file calls its
// alias.
const at::Tensor* find_in_file(const Safetensors& file, const std::string& name) {
  if (const auto found = file.tensors.find(name); found != file.tensors.end()) {
    return &found->second;
  }
  if (const auto alias = file.metadata.find(name); alias != file.metadata.end()) {
    if (const auto found = file.tensors.find(alias->second); found != file.tensors.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

// Bits, not values: two NaNs are the same weight.
bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Why the value cannot be copied into the target; empty if it can.
std::string obstacle(const at::Tensor& target, const at::Tensor& value) {
  if (target.sizes() != value.sizes()) {
    return fmt::format("{} in the file, {} in the module", shape_text(value.sizes()),
                       shape_text(target.sizes()));
  }
  const bool converts = target.is_floating_point() && value.is_floating_point();
  if (!converts && target.scalar_type() != value.scalar_type()) {
    return fmt::format("{} in the file, {} in the module", c10::toString(value.scalar_type()),
                       c10::toString(target.scalar_type()));
  }
  if (target.is_meta()) {
    return "on the meta device in the module; give it memory first";
  }
  return {};
}

struct Copy {
  at::Tensor target;
  const at::Tensor* value;
};

ModuleMismatch plan_copies(const std::vector<RegisteredTensor>& registered, const Safetensors& file,
                           std::vector<Copy>& copies) {
  ModuleMismatch mismatch;
  std::set<std::string_view> known;
  for (const auto& [tensor, names] : registered) {
    known.insert(names.begin(), names.end());
    const at::Tensor* value = nullptr;
    const std::string* value_name = nullptr;
    std::string problem;
    for (const auto& name : names) {
      const auto* candidate = find_in_file(file, name);
      if (candidate == nullptr || candidate == value) {
        continue;
      }
      if (value == nullptr) {
        value = candidate;
        value_name = &name;
        problem = obstacle(tensor, *candidate);
      } else if (problem.empty() && !same_bits(*value, *candidate)) {
        problem =
            fmt::format("one tensor in the module with {}, two different ones in the file", name);
      }
    }
    if (value == nullptr) {
      mismatch.missing.push_back(names.front());
    } else if (!problem.empty()) {
      mismatch.mismatched.push_back(fmt::format("{} ({})", *value_name, problem));
    } else {
      copies.push_back({tensor, value});
    }
  }
  for (const auto& [name, value] : file.tensors) {
    if (!known.contains(name)) {
      mismatch.unexpected.push_back(name);
    }
  }
  return mismatch;
}

}  // namespace
}  // namespace detail

ModuleState module_state(const torch::nn::Module& module) {
  ModuleState state;
  for (auto& [tensor, names] : detail::registered_tensors(module)) {
    for (auto name = std::next(names.begin()); name != names.end(); ++name) {
      state.aliases.emplace(*name, names.front());
    }
    state.tensors.emplace_back(names.front(), tensor);
  }
  return state;
}

ParameterNames parameter_names(const std::vector<const torch::nn::Module*>& modules) {
  ParameterNames names;
  std::set<std::string> taken;
  for (std::size_t index = 0; index < modules.size(); ++index) {
    const auto prefix = index == 0 ? std::string() : fmt::format("model_{}.", index);
    for (const auto& [name, tensor] : module_state(*modules[index]).tensors) {
      const auto [place, is_new] = names.emplace(tensor.unsafeGetTensorImpl(), prefix + name);
      if (is_new && !taken.insert(place->second).second) {
        detail::fail(ErrorCategory::usage,
                     "two parameters are called {}; rename the submodule of the first model",
                     place->second);
      }
    }
  }
  return names;
}

std::string ModuleMismatch::text() const {
  std::vector<std::string> clauses;
  const auto add = [&](std::string_view title, const std::vector<std::string>& keys) {
    if (!keys.empty()) {
      clauses.push_back(fmt::format("{}: {}", title, fmt::join(keys, ", ")));
    }
  };
  add("missing", missing);
  add("unexpected", unexpected);
  add("mismatched", mismatched);
  return fmt::format("{}", fmt::join(clauses, "; "));
}

namespace detail {
namespace {

void copy_all(std::vector<Copy>& copies) {
  const at::NoGradGuard no_grad;
  for (auto& [target, value] : copies) target.copy_(*value);
}

[[noreturn]] void fail_mismatch(const Safetensors& file, const ModuleMismatch& mismatch) {
  fail(ErrorCategory::checkpoint, "{} does not fit the module: {} (strict = false loads what fits)",
       file.source, mismatch.text());
}

}  // namespace
}  // namespace detail

ModuleMismatch load_module_state(torch::nn::Module& module, const Safetensors& file, bool strict) {
  std::vector<detail::Copy> copies;
  auto mismatch = detail::plan_copies(detail::registered_tensors(module), file, copies);
  if (strict && !mismatch.empty()) detail::fail_mismatch(file, mismatch);
  detail::copy_all(copies);
  return mismatch;
}

std::function<void()> plan_module_load(torch::nn::Module& module, Safetensors file) {
  // The copies point into the file, which the function keeps.
  const auto kept = std::make_shared<const Safetensors>(std::move(file));
  std::vector<detail::Copy> copies;
  const auto mismatch = detail::plan_copies(detail::registered_tensors(module), *kept, copies);
  if (!mismatch.empty()) detail::fail_mismatch(*kept, mismatch);
  return [kept, copies]() mutable { detail::copy_all(copies); };
}

}  // namespace accel
