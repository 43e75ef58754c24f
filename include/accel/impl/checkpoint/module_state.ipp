// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/module_state.hpp.
#include <accel/checkpoint/module_state.hpp>

#include <accel/comm/object_collectives.hpp>
#include <accel/detail/error.hpp>
#include <accel/engine/autocast.hpp>

#include <ATen/ops/empty.h>

#include <torch/nn/module.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
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

// What is to be known of a file before its values are copied.
struct Source {
  struct Value {
    at::ScalarType type;
    std::vector<int64_t> sizes;
  };
  std::map<std::string, Value, std::less<>> values;
  const SafetensorsMetadata* metadata;
  std::string name;
  std::function<at::Tensor(const std::string&)> read;
};

Source source_of(const Safetensors& file) {
  Source source{{}, &file.metadata, file.source, [&file](const std::string& name) {
                  return file.tensors.find(name)->second;
                }};
  for (const auto& [name, tensor] : file.tensors)
    source.values.emplace(name, Source::Value{tensor.scalar_type(), tensor.sizes().vec()});
  return source;
}

Source source_of(const SafetensorsReader& file) {
  Source source{{}, &file.metadata(), file.source(), [&file](const std::string& name) {
                  return file.read(name);
                }};
  for (const auto& [name, entry] : file.entries())
    source.values.emplace(name, Source::Value{scalar_type_of(entry), entry.shape});
  return source;
}

// Under which name the file has a name's tensor: itself, or the one that the file calls its alias.
const std::string* find_in_file(const Source& file, const std::string& name) {
  if (const auto found = file.values.find(name); found != file.values.end()) return &found->first;
  if (const auto alias = file.metadata->find(name); alias != file.metadata->end())
    if (const auto found = file.values.find(alias->second); found != file.values.end())
      return &found->first;
  return nullptr;
}

// Bits, not values: two NaNs are the same weight.
bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Why the value cannot be copied into the target; empty if it can.
std::string obstacle(const at::Tensor& target, const Source::Value& value) {
  if (target.sizes() != value.sizes) {
    return fmt::format("{} in the file, {} in the module", shape_text(value.sizes),
                       shape_text(target.sizes()));
  }
  const bool converts = target.is_floating_point() && c10::isFloatingType(value.type);
  if (!converts && target.scalar_type() != value.type) {
    return fmt::format("{} in the file, {} in the module", c10::toString(value.type),
                       c10::toString(target.scalar_type()));
  }
  if (target.is_meta()) {
    return "on the meta device in the module; give it memory first";
  }
  return {};
}

struct Copy {
  std::size_t target = 0;  // number among the module's tensors
  std::string name;        // in the file
};

ModuleMismatch plan_copies(const std::vector<RegisteredTensor>& registered, const Source& file,
                           std::vector<Copy>& copies) {
  ModuleMismatch mismatch;
  std::set<std::string_view> known;
  for (std::size_t number = 0; number < registered.size(); ++number) {
    const auto& [tensor, names] = registered[number];
    known.insert(names.begin(), names.end());
    const std::string* value = nullptr;
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
        problem = obstacle(tensor, file.values.find(*candidate)->second);
      } else if (problem.empty() && !same_bits(file.read(*value), file.read(*candidate))) {
        problem =
            fmt::format("one tensor in the module with {}, two different ones in the file", name);
      }
    }
    if (value == nullptr) {
      mismatch.missing.push_back(names.front());
    } else if (!problem.empty()) {
      mismatch.mismatched.push_back(fmt::format("{} ({})", *value_name, problem));
    } else {
      copies.push_back({number, *value});
    }
  }
  for (const auto& [name, value] : file.values) {
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

void copy_all(const Source& file, const std::vector<RegisteredTensor>& registered,
              const std::vector<Copy>& copies) {
  const at::NoGradGuard no_grad;
  for (const auto& [target, name] : copies) registered[target].tensor.copy_(file.read(name));
  forget_cast_weights();
}

[[noreturn]] void fail_mismatch(const Source& file, const ModuleMismatch& mismatch) {
  fail(ErrorCategory::checkpoint, "{} does not fit the module: {} (strict = false loads what fits)",
       file.name, mismatch.text());
}

}  // namespace
}  // namespace detail

ModuleMismatch load_module_state(torch::nn::Module& module, const Safetensors& file, bool strict) {
  std::vector<detail::Copy> copies;
  const auto source = detail::source_of(file);
  const auto registered = detail::registered_tensors(module);
  auto mismatch = detail::plan_copies(registered, source, copies);
  if (strict && !mismatch.empty()) detail::fail_mismatch(source, mismatch);
  detail::copy_all(source, registered, copies);
  return mismatch;
}

std::function<void()> plan_module_load(torch::nn::Module& module, Safetensors file) {
  // The source refers to the file, which the function keeps.
  const auto kept = std::make_shared<const Safetensors>(std::move(file));
  const auto source = detail::source_of(*kept);
  const auto registered = detail::registered_tensors(module);
  std::vector<detail::Copy> copies;
  const auto mismatch = detail::plan_copies(registered, source, copies);
  if (!mismatch.empty()) detail::fail_mismatch(source, mismatch);
  return [kept, source, registered, copies] { detail::copy_all(source, registered, copies); };
}

ModuleMismatch load_checkpoint_in_model(torch::nn::Module& module,
                                        const std::filesystem::path& checkpoint,
                                        const Communicator& communicator, bool strict) {
  const auto registered = detail::registered_tensors(module);
  const bool reads = communicator.rank() == 0;
  std::optional<SafetensorsReader> reader;
  std::optional<detail::Source> source;
  ModuleMismatch mismatch;
  std::vector<detail::Copy> copies;
  constexpr const char* failed = "rank 0 could not load the checkpoint into the model";
  communicator.together(
      [&] {
        if (!reads) return;
        reader.emplace(checkpoint);
        source.emplace(detail::source_of(*reader));
        mismatch = detail::plan_copies(registered, *source, copies);
        if (strict && !mismatch.empty()) detail::fail_mismatch(*source, mismatch);
      },
      ErrorCategory::checkpoint, failed);
  std::vector<std::size_t> targets;
  for (const auto& copy : copies) targets.push_back(copy.target);
  targets = broadcast_object(communicator, targets);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& target = registered.at(targets[i]).tensor;
    const auto options = at::TensorOptions().dtype(target.scalar_type()).device(target.device());
    at::Tensor value;
    communicator.together(
        [&] {
          value =
              reads ? source->read(copies[i].name).to(options) : at::empty(target.sizes(), options);
        },
        ErrorCategory::checkpoint, failed);
    communicator.broadcast_coalesced_({value}, 0);
    target.copy_(value);
  }
  detail::forget_cast_weights();
  const auto lists = broadcast_object(
      communicator, std::vector{mismatch.missing, mismatch.unexpected, mismatch.mismatched});
  return {lists.at(0), lists.at(1), lists.at(2)};
}

}  // namespace accel
