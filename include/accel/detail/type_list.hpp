// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The two questions that policy templates ask about their arguments. Lists that are iterated over
// are Boost.Hana's matter, which is too heavy for the headers of the policies.
#pragma once

#include <concepts>

namespace accel::detail {

/// How many of `Types` are `Type`.
template <class Type, class... Types>
inline constexpr int count_of = (0 + ... + static_cast<int>(std::same_as<Type, Types>));

/// No type is there twice.
template <class... Types>
inline constexpr bool distinct = ((count_of<Types, Types...> == 1) && ...);

}  // namespace accel::detail
