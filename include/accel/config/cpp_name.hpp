// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Which texts are names in C++: of the classes in wrap<...> and of namespaces.
#pragma once

#include <string_view>

namespace accel::detail {

/// Identifiers with `::` between them, such as `BlockImpl` or `my::BlockImpl`. Keywords are left to
/// the compiler, which names them better.
bool is_qualified_name(std::string_view name);

}  // namespace accel::detail
