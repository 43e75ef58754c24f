// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/optimizer_state.hpp. Reads and writes the public state() and param_groups()
// of LibTorch's optimizers.
#include <accel/checkpoint/optimizer_state.hpp>

#include <accel/detail/error.hpp>
#include <accel/optim/optimizer_fields.hpp>

#include <ATen/ops/empty_like.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace accel {
namespace detail {
namespace {

using nlohmann::json;

constexpr std::int64_t optimizer_format = 1;

// The names of each group's parameters; one that stands in a group twice (tied weights) counts
// once.
std::vector<std::vector<std::string>> group_names(const torch::optim::Optimizer& optimizer,
                                                  const ParameterNames& names) {
  std::vector<std::vector<std::string>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& list = groups.emplace_back();
    std::set<const c10::TensorImpl*> seen;
    for (const auto& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        fail(ErrorCategory::checkpoint,
             "a parameter of shape {} in group {} of the optimizer belongs to no prepared model; "
             "its state has no name to be saved under: register it in a module, and prepare that",
             shape_text(parameter.sizes()), groups.size() - 1);
      }
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
        list.push_back(found->second);
      }
    }
  }
  return groups;
}

std::string tensor_key(std::string_view field, const std::string& parameter) {
  return fmt::format("{}.{}", field, parameter);
}

template <class ParamState>
json describe_state(const ParamState& state, const std::string& name, NamedTensors& tensors) {
  json description{{"tensors", json::array()}};
  visit_state(state, [&]<class Value>(const char* field, const Value& value) {
    if constexpr (std::same_as<Value, at::Tensor>) {
      if (value.defined()) {
        description["tensors"].push_back(field);
        tensors.emplace_back(tensor_key(field, name), value);
      }
    } else {
      description[field] = value;
    }
  });
  return description;
}

// nlohmann/json turns 2.9 into the integer 2 and true into 1.0; a damaged file must not pass that
// way.
void read_value(const json& value, double& target) {
  if (!value.is_number()) {
    fail(ErrorCategory::checkpoint, "{} is not a number", value.dump());
  }
  target = value.get<double>();
}
void read_value(const json& value, std::int64_t& target) {
  if (!value.is_number_integer()) {
    fail(ErrorCategory::checkpoint, "{} is not a whole number", value.dump());
  }
  target = value.get<std::int64_t>();
}
void read_value(const json& value, bool& target) { value.get_to(target); }
void read_value(const json& value, std::tuple<double, double>& target) {
  read_value(value.at(0), std::get<0>(target));
  read_value(value.at(1), std::get<1>(target));
}

// A live optimizer against a saved one: everything that is to be set, and everything that does not
// fit. Nothing is changed before the whole has been compared.
template <class Kind>
class OptimizerLoad {
  using Options = typename Kind::Options;
  using ParamState = typename Kind::ParamState;

 public:
  OptimizerLoad(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                const json& description, const Safetensors& file)
      : optimizer_(optimizer), file_(file), saved_states_(description.at("state")) {
    for (const auto& [name, tensor] : file.tensors) {
      unused_.insert(name);
    }
    compare_groups(group_names(optimizer, names), description.at("groups"));
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto* key = parameter.unsafeGetTensorImpl();
        if (!states_.contains(key)) {
          compare_state(parameter, names.at(key));
        }
      }
    }
    for (const auto& [name, state] : saved_states_.items()) {
      if (!visited_.contains(name)) {
        problems_.push_back(
            fmt::format("{} has state in the file, but is not of the optimizer", name));
      }
    }
    for (const auto& name : unused_) {
      problems_.push_back(fmt::format("{} is unexpected in the file", name));
    }
  }

  const std::vector<std::string>& problems() const { return problems_; }

  void apply() {
    auto option = options_.begin();
    for (auto& group : optimizer_.param_groups()) {
      static_cast<Options&>(group.options()) = *option++;
    }
    optimizer_.state().clear();
    for (auto& [key, state] : states_) {
      if (state) {
        optimizer_.state()[const_cast<c10::TensorImpl*>(key)] = std::move(state);
      }
    }
  }

 private:
  void compare_groups(const std::vector<std::vector<std::string>>& live, const json& saved) {
    if (live.size() != saved.size()) {
      problems_.push_back(fmt::format("{} parameter groups in the file, {} in the optimizer",
                                      saved.size(), live.size()));
      return;
    }
    for (std::size_t index = 0; index < live.size(); ++index) {
      const std::set<std::string> here(live[index].begin(), live[index].end());
      const auto there = saved[index].at("parameters").get<std::set<std::string>>();
      for (const auto& name : here) {
        if (!there.contains(name)) {
          problems_.push_back(fmt::format("{} is in group {} of the optimizer only", name, index));
        }
      }
      for (const auto& name : there) {
        if (!here.contains(name)) {
          problems_.push_back(fmt::format("{} is in group {} of the file only", name, index));
        }
      }
      auto& options =
          options_.emplace_back(static_cast<Options&>(optimizer_.param_groups()[index].options()));
      const auto& values = saved[index].at("options");
      visit_options(options,
                    [&](const char* field, auto& value) { read_value(values.at(field), value); });
    }
  }

  void compare_state(const at::Tensor& parameter, const std::string& name) {
    auto& state = states_[parameter.unsafeGetTensorImpl()];
    const auto saved = saved_states_.find(name);
    if (saved == saved_states_.end()) {
      // A parameter that never had a gradient has no state, except for Adagrad, which makes it at
      // construction.
      if (std::same_as<ParamState, torch::optim::AdagradParamState>) {
        problems_.push_back(fmt::format("{} has no state in the file", name));
      }
      return;
    }
    visited_.insert(name);
    state = std::make_unique<ParamState>();
    auto fields = saved->at("tensors").template get<std::set<std::string>>();
    visit_state(*state, [&]<class Value>(const char* field, Value& value) {
      if constexpr (std::same_as<Value, at::Tensor>) {
        if (fields.erase(field) > 0) {
          value = state_tensor(tensor_key(field, name), parameter);
        }
      } else {
        read_value(saved->at(field), value);
      }
    });
    for (const auto& field : fields) {
      problems_.push_back(fmt::format("{} has an unknown kind of state, '{}'", name, field));
    }
  }

  // On the parameter's device and with its strides, as the optimizer itself would have made it.
  at::Tensor state_tensor(const std::string& key, const at::Tensor& parameter) {
    const auto found = file_.tensors.find(key);
    if (found == file_.tensors.end()) {
      problems_.push_back(fmt::format("{} is missing in the file", key));
      return {};
    }
    unused_.erase(key);
    const auto& value = found->second;
    if (value.sizes() != parameter.sizes()) {
      problems_.push_back(fmt::format("{} ({} in the file, {} in the optimizer)", key,
                                      shape_text(value.sizes()), shape_text(parameter.sizes())));
      return {};
    }
    const at::NoGradGuard no_grad;
    return at::empty_like(parameter,
                          parameter.options().dtype(value.scalar_type()).requires_grad(false))
        .copy_(value);
  }

  torch::optim::Optimizer& optimizer_;
  const Safetensors& file_;
  const json& saved_states_;
  std::vector<Options> options_;
  std::map<const c10::TensorImpl*, std::unique_ptr<ParamState>> states_;
  std::set<std::string> unused_;
  std::set<std::string> visited_;
  std::vector<std::string> problems_;
};

}  // namespace
}  // namespace detail

OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const ParameterNames& names) {
  OptimizerState result;
  detail::visit_kind(optimizer, [&]<class Kind>(Kind kind) {
    const auto groups = detail::group_names(optimizer, names);
    auto& description = result.description;
    description = {{"format", detail::optimizer_format},
                   {"type", kind.name},
                   {"groups", nlohmann::json::array()},
                   {"state", nlohmann::json::object()}};
    for (std::size_t index = 0; index < groups.size(); ++index) {
      const auto& group = optimizer.param_groups()[index];
      nlohmann::json options = nlohmann::json::object();
      detail::visit_options(static_cast<const typename Kind::Options&>(group.options()),
                            [&](const char* field, const auto& value) { options[field] = value; });
      description["groups"].push_back(
          {{"options", std::move(options)}, {"parameters", groups[index]}});
      for (const auto& parameter : group.params()) {
        const auto* key = parameter.unsafeGetTensorImpl();
        const auto& name = names.at(key);
        const auto found = optimizer.state().find(const_cast<c10::TensorImpl*>(key));
        if (found != optimizer.state().end() && !description["state"].contains(name)) {
          description["state"][name] = detail::describe_state(
              static_cast<const typename Kind::ParamState&>(*found->second), name, result.tensors);
        }
      }
    }
  });
  return result;
}

void load_optimizer_state(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                          const nlohmann::json& description, const Safetensors& tensors) {
  plan_optimizer_load(optimizer, names, description, tensors)();
}

std::function<void()> plan_optimizer_load(torch::optim::Optimizer& optimizer,
                                          ParameterNames optimizer_names, nlohmann::json saved,
                                          Safetensors file) {
  // What the loads below refer to; the function that is returned keeps it.
  struct Source {
    ParameterNames names;
    nlohmann::json description;
    Safetensors tensors;
  };
  const auto source = std::make_shared<const Source>(
      Source{std::move(optimizer_names), std::move(saved), std::move(file)});
  const auto& [names, description, tensors] = *source;
  std::function<void()> apply;
  detail::visit_kind(optimizer, [&]<class Kind>(Kind kind) {
    try {
      std::int64_t format = 0;
      detail::read_value(description.at("format"), format);
      if (format != detail::optimizer_format) {
        detail::fail(ErrorCategory::checkpoint, "it has format {}, this library reads {}", format,
                     detail::optimizer_format);
      }
      if (const auto type = description.at("type").get<std::string>(); type != kind.name) {
        detail::fail(ErrorCategory::checkpoint, "it is of {}, and the optimizer is {}", type,
                     kind.name);
      }
      auto load =
          std::make_shared<detail::OptimizerLoad<Kind>>(optimizer, names, description, tensors);
      if (!load->problems().empty()) {
        detail::fail(ErrorCategory::checkpoint, "{}", fmt::join(load->problems(), "; "));
      }
      apply = [source, load] { load->apply(); };
    } catch (const nlohmann::json::exception& problem) {
      detail::fail(ErrorCategory::checkpoint, "the optimizer state of {} is damaged: {}",
                   tensors.source, problem.what());
    } catch (const Error& problem) {
      detail::fail(problem.category(), "the optimizer state of {} does not fit: {}", tensors.source,
                   problem.what());
    }
  });
  return apply;
}

}  // namespace accel
