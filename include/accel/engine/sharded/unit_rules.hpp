// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which modules are units (policy/units.hpp), and so which parameters are gathered and reduced
// together. Comes before sharded_parallel.hpp, which makes a unit of each list.
#pragma once

#include <accel/engine/gradients.hpp>
#include <accel/policy/units.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace accel {

/// A way to cut a module, as a value: what a policy says, and the numbers that are run-time options.
struct UnitRule {
  unit_rule rule = unit_rule::automatic;
  bool (*is_unit)(const torch::nn::Module&) = nullptr;  ///< of `by_class`
  int64_t min_num_params = 100'000'000;                 ///< of `by_size`, as FSDP's
};

/// The parameters of one unit, each under its name in the whole module.
struct UnitParameters {
  std::string name;  ///< of its module; empty for the root unit, which has what is left over
  std::vector<NamedParameter> parameters;
};

/// Cuts a module into units, in the order of registration, the root unit first if it has any
/// parameter. Each parameter is in one of them: the innermost unit that registers it, and of several
/// that share it the first. Throws Error(usage) where a rule by class finds nothing.
[[nodiscard]] std::vector<UnitParameters> cut_into_units(const torch::nn::Module& module,
                                                         const UnitRule& rule);

namespace detail {

template <class... Modules>
struct ClassesOf;
template <class... Modules>
struct ClassesOf<wrap<Modules...>> {
  static bool contain(const torch::nn::Module& module) {
    return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
  }
};

}  // namespace detail

/// The rule of a policy.
template <UnitPolicy Units>
[[nodiscard]] UnitRule unit_rule_of(int64_t min_num_params) {
  UnitRule rule{Units::rule, nullptr, min_num_params};
  if constexpr (Units::rule == unit_rule::by_class)
    rule.is_unit = &detail::ClassesOf<Units>::contain;
  return rule;
}

}  // namespace accel
