// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// YAML as nodes with lines. Comes after node.hpp; document.hpp decides which files are YAML.
#pragma once

#include <accel/config/faults.hpp>
#include <accel/config/node.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace accel::detail {

/// Reads one YAML document; an empty one is an empty map. Anchors are replaced by what they stand
/// for. Syntax errors go to `faults`, with `name` and the line; the result is then nullopt.
std::optional<Node> parse_yaml(std::string_view text, const std::string& name, Faults& faults);

}  // namespace accel::detail
