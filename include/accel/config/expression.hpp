// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The spelling of a policy, taken apart: "sharded<zero3, wrap<A, B>>" is a name with two arguments,
// one of which has two more. policy_names.hpp reads spellings with it, policy_header.hpp turns them
// into C++.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::detail {

/// A name, and what is between the angle brackets after it.
struct Expression {
  std::string name;  ///< an identifier (with :: in it where it is qualified) or a number
  std::vector<Expression> arguments;
};

/// Throws Error(config) where the text is no such expression.
Expression parse_expression(std::string_view text);

/// The one canonical spelling: ", " between arguments, no other white space.
std::string to_text(const Expression& expression);

}  // namespace accel::detail
