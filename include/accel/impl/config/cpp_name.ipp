// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/cpp_name.hpp.
#include <accel/config/cpp_name.hpp>

#include <algorithm>
#include <cctype>

namespace accel::detail {

bool is_qualified_name(std::string_view name) {
  for (;;) {
    const auto end = name.find("::");
    const auto part = name.substr(0, end);
    const bool begins = !part.empty() && std::isdigit(static_cast<unsigned char>(part[0])) == 0;
    const bool whole = std::ranges::all_of(part, [](char letter) {
      return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
    });
    if (!begins || !whole) return false;
    if (end == std::string_view::npos) return true;
    name.remove_prefix(end + 2);
  }
}

}  // namespace accel::detail
