// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Builds archetypes (the least that satisfies a concept) out of single facts, and near misses (an
// archetype with one fact taken away or replaced). Used by the tests of this folder, which are
// compiled and never run.
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

namespace accel::testing {

/// Stands where a fact was taken away.
template <class Fact>
struct nothing {};

/// Inherits one fact from each base.
template <class... Facts>
struct archetype : Facts... {
  /// With `New` in the place of `Old`.
  template <class Old, class New>
  using with = archetype<std::conditional_t<std::same_as<Facts, Old>, New, Facts>...>;

  template <class Fact>
  using without = with<Fact, nothing<Fact>>;
};

/// What a template takes as its arguments, as a question inside a template: outside of one, naming
/// the refused class is an error and not `false`.
template <template <class...> class Template, class... Arguments>
concept Accepts = requires { typename Template<Arguments...>; };

struct has_name {
  static constexpr std::string_view name = "archetype";
};

// Wrong in one way each.
struct empty_name {
  static constexpr std::string_view name = "";
};
struct text_name {
  static constexpr const char* name = "archetype";
};
struct variable_name {
  static inline std::string_view name = "archetype";
};

}  // namespace accel::testing
