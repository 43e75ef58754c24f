// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// JSON as nodes with lines, and nodes as JSON. Comes after node.hpp; document.hpp decides which
// files are JSON.
#pragma once

#include <accel/config/faults.hpp>
#include <accel/config/node.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace accel::detail {

/// Reads JSON. Syntax errors go to `faults`, with `name` and the line; the result is then nullopt.
std::optional<Node> parse_json(std::string_view text, const std::string& name, Faults& faults);

/// The text is one JSON object and nothing else.
bool is_json_object(std::string_view text);

/// The text is UTF-8 throughout.
bool is_utf8(std::string_view text);

/// The value as compact JSON, and back.
std::string json_text(const Node& node);
Node node_of_json(const std::string& text);

}  // namespace accel::detail
