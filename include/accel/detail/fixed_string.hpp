// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Text as a template argument: the sentences that a failed concept shows and the names that
// policies build from the names of their parts. Holds characters only; what is said with them
// belongs to unmet.hpp and to the policies.
#pragma once

#include <cstddef>
#include <string_view>

namespace accel::detail {

/// Copies characters. Not std::copy_n: <algorithm> would cost every user of a policy as much again.
constexpr void copy_characters(const char* from, std::size_t count, char* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

/// A string of `Size` characters that can be a template argument.
template <std::size_t Size>
struct fixed_string {
  char characters[Size + 1] = {};  // public, as the members of a template argument have to be

  constexpr fixed_string() = default;

  // Implicit, so that a literal can stand where a template argument of this type is expected.
  constexpr fixed_string(const char (&literal)[Size + 1]) {
    copy_characters(literal, Size, characters);
  }

  constexpr explicit fixed_string(std::string_view text) {
    copy_characters(text.data(), Size, characters);
  }

  [[nodiscard]] constexpr std::string_view view() const { return {characters, Size}; }
};

template <std::size_t SizePlusOne>
fixed_string(const char (&)[SizePlusOne]) -> fixed_string<SizePlusOne - 1>;

template <std::size_t Left, std::size_t Right>
constexpr fixed_string<Left + Right> operator+(const fixed_string<Left>& left,
                                               const fixed_string<Right>& right) {
  fixed_string<Left + Right> joined;
  copy_characters(left.characters, Left, joined.characters);
  copy_characters(right.characters, Right, joined.characters + Left);
  return joined;
}

template <std::size_t LeftPlusOne, std::size_t Right>
constexpr auto operator+(const char (&left)[LeftPlusOne], const fixed_string<Right>& right) {
  return fixed_string<LeftPlusOne - 1>(left) + right;
}

template <std::size_t Left, std::size_t RightPlusOne>
constexpr auto operator+(const fixed_string<Left>& left, const char (&right)[RightPlusOne]) {
  return left + fixed_string<RightPlusOne - 1>(right);
}

/// A view of `Text` that lives as long as the program: a template argument of class type has static
/// storage.
template <fixed_string Text>
inline constexpr std::string_view text = Text.view();

}  // namespace accel::detail
