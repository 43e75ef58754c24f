// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A file as a tree of nodes that remember their line, the same for YAML and JSON, so that what is
// checked afterwards (yaml.hpp) is checked once. Owns the syntax; knows no keys.
#pragma once

#include <accel/config/faults.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel::detail {

/// One value of a file. What a plain word is (`yes`, `4`, `null`) follows YAML 1.1, as in Python;
/// `text` keeps the word.
struct Node {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  std::string text;  ///< of a scalar, as written
  int line = 0;      ///< of a map's entry: where its key is
  std::vector<std::pair<std::string, Node>>
      children;  ///< of a map with keys, of a list with empty ones

  /// A map's entry, or nullptr.
  [[nodiscard]] const Node* find(std::string_view key) const;
};

/// "a whole number", "a list", ...: for messages.
std::string_view kind_name(Node::Kind kind);

/// Reads YAML, or JSON: a text that is valid JSON is read as such whatever its name (Accelerate
/// writes JSON into default_config.yaml), and one called *.json as nothing else. Syntax errors go
/// to `faults`, with `name` and the line; the result is then nullopt. An empty document is an empty
/// map.
std::optional<Node> parse_document(std::string_view text, const std::string& name, Faults& faults);

/// YAML reads `text` back as this text without quotes around it, in Python too. Errs towards
/// quotes.
bool is_plain_text(std::string_view text);

/// The value as compact JSON, and back.
std::string json_text(const Node& node);
Node node_of_json(const std::string& text);

}  // namespace accel::detail
