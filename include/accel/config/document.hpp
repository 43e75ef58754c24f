// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A configuration file as a tree: YAML or JSON, one map, no key twice. Comes after
// yaml_document.hpp and json_document.hpp; reader.hpp looks its keys up.
#pragma once

#include <accel/config/faults.hpp>
#include <accel/config/node.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace accel::detail {

/// Reads YAML, or JSON: a text that is valid JSON is read as such whatever its name (Accelerate
/// writes JSON into default_config.yaml), and one called *.json as nothing else. What is wrong goes
/// to `faults`, with `name` and the line; if nothing can be read, the result is nullopt. A key that
/// is given twice is kept once.
std::optional<Node> parse_document(std::string_view text, const std::string& name, Faults& faults);

}  // namespace accel::detail
