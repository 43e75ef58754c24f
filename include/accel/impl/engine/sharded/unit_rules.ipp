// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/sharded/unit_rules.hpp>

#include <accel/detail/error.hpp>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <typeindex>
#include <unordered_set>
#include <utility>

namespace accel {

namespace {

using torch::nn::Module;

/// A module that is a unit, and its name.
struct Found {
  std::string name;
  const Module* module;
};

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// Children of one class that stand at least twice in a list or sequence. What lies inside of one is
/// part of it.
void find_repeated(const Module& module, const std::string& prefix, std::vector<Found>& found) {
  const bool is_list = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) ||
                       dynamic_cast<const torch::nn::SequentialImpl*>(&module);
  std::map<std::type_index, int> counts;
  const auto children = module.named_children();
  if (is_list)
    for (const auto& child : children) {
      const auto& inner = *child.value();
      if (!inner.parameters().empty()) ++counts[typeid(inner)];
    }
  for (const auto& child : children) {
    const auto& inner = *child.value();
    const auto name = joined(prefix, child.key());
    const auto count = counts.find(typeid(inner));
    if (count != counts.end() && count->second > 1 && !inner.parameters().empty())
      found.push_back({name, &inner});
    else
      find_repeated(inner, name, found);
  }
}

void find_by_class(const Module& module, const UnitRule& rule, std::vector<Found>& found) {
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (rule.is_unit(*item.value())) found.push_back({item.key(), item.value().get()});
}

/// Consecutive modules that have parameters of their own, until enough of them are together.
std::vector<UnitParameters> cut_by_size(const Module& module, int64_t min_num_params) {
  std::vector<UnitParameters> units;
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t held = min_num_params;
  const auto take = [&](const std::string& prefix, const Module& part) {
    bool first = true;
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
        continue;
      if (std::exchange(first, false) && held >= min_num_params) {
        units.push_back({units.empty() ? "" : prefix, {}});
        held = 0;
      }
      units.back().parameters.emplace_back(joined(prefix, item.key()), item.value());
      held += item.value().numel();
    }
  };
  take("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    take(item.key(), *item.value());
  return units;
}

}  // namespace

std::vector<UnitParameters> cut_into_units(const Module& module, const UnitRule& rule) {
  if (rule.rule == unit_rule::by_size) return cut_by_size(module, rule.min_num_params);

  std::vector<Found> found;
  if (rule.rule == unit_rule::by_class)
    find_by_class(module, rule, found);
  else
    find_repeated(module, "", found);
  if (found.empty() && rule.rule == unit_rule::by_class)
    detail::fail(ErrorCategory::usage,
                 "accel: the module {} has no submodule of the classes that are to be units; name "
                 "the classes of its blocks in wrap<...>, or use wrap_auto",
                 module.name());

  // From the last to the first, so that the first of several that share a parameter has it; an outer
  // unit has what its inner ones leave.
  std::map<const c10::TensorImpl*, size_t> owner;
  for (size_t i = found.size(); i-- > 0;)
    for (const auto& parameter : found[i].module->parameters()) {
      if (!parameter.defined()) continue;
      auto& holder = owner.emplace(parameter.unsafeGetTensorImpl(), i).first->second;
      if (!found[holder].name.starts_with(found[i].name + ".")) holder = i;
    }
  std::vector<UnitParameters> units(found.size() + 1);
  for (size_t i = 0; i < found.size(); ++i) units[i + 1].name = found[i].name;
  for (const auto& named : unique_parameters(module)) {
    const auto place = owner.find(named.second.unsafeGetTensorImpl());
    units[place == owner.end() ? 0 : place->second + 1].parameters.push_back(named);
  }
  std::erase_if(units, [](const UnitParameters& unit) { return unit.parameters.empty(); });
  return units;
}

}  // namespace accel
