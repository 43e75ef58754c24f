// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Builds the spelling of a policy ("sharded<hybrid<zero3>, wrap<Block>>") from the names of its
// arguments at compile time. Comes after fixed_string.hpp; used by the policy templates for their
// member `name`.
#pragma once

#include <accel/detail/fixed_string.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace accel::detail {

/// `Policy::name` as a fixed_string.
template <class Policy>
constexpr auto name_of() {
  return fixed_string<Policy::name.size()>(Policy::name);
}

/// The names of the policies, separated by ", ".
template <class First, class... Rest>
constexpr auto names_of() {
  return (name_of<First>() + ... + (", " + name_of<Rest>()));
}

/// The integer in decimal digits.
template <std::int64_t Number>
constexpr auto decimal() {
  constexpr bool negative = Number < 0;
  constexpr std::size_t size = [] {
    std::size_t digits = 1;
    for (std::int64_t rest = Number / 10; rest != 0; rest /= 10) ++digits;
    return digits + (negative ? 1 : 0);
  }();
  fixed_string<size> text;
  std::size_t place = size;
  std::int64_t rest = Number;
  do {
    const auto digit = rest % 10;  // has the number's sign: the smallest integer is no special case
    text.characters[--place] = static_cast<char>('0' + (digit < 0 ? -digit : digit));
    rest /= 10;
  } while (rest != 0);
  if constexpr (negative) text.characters[0] = '-';
  return text;
}

/// The name of a type, with its namespaces, as the compiler prints it.
template <class Type>
constexpr std::string_view type_name() {
  // Both g++ and clang end the text of this function with "[with Type = X; ...]" or "[Type = X]".
  constexpr std::string_view whole = __PRETTY_FUNCTION__;
  constexpr std::string_view before = "Type = ";
  constexpr std::size_t start = whole.find(before) + before.size();
  constexpr std::size_t end = whole.find_first_of(";]", start);
  return whole.substr(start, end - start);
}

/// The names of the types, separated by ", ".
template <class First, class... Rest>
constexpr auto type_names() {
  constexpr auto fixed = []<class Type>(const Type*) {
    return fixed_string<type_name<Type>().size()>(type_name<Type>());
  };
  return (fixed(static_cast<const First*>(nullptr)) + ... +
          (", " + fixed(static_cast<const Rest*>(nullptr))));
}

}  // namespace accel::detail
