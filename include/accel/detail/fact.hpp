// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the axis concepts require of one member of a policy. A fact is a constant of exactly the
// stated type, so that a policy with `static constexpr int distributed = 2` is refused rather than
// converted.
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace accel::detail {

/// `Value` is of exactly this type. Named in a requires-expression, where a member that is missing
/// or is no constant makes it false. A variable and not a concept: g++ 12 does not evaluate what it
/// passes on to a concept, and takes a member that is no constant (tests/static/backend.cpp).
template <auto Value, class Type>
inline constexpr bool is_fact = std::is_same_v<decltype(Value), Type>;

/// `name` is a constant std::string_view that is not empty: the spelling of the policy.
template <class Policy>
concept Named = requires {
  { Policy::name } -> std::same_as<const std::string_view&>;
  requires is_fact<Policy::name.size(), std::size_t>;
  requires Policy::name.size() > 0;
};

}  // namespace accel::detail
