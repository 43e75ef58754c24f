// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A value of a configuration file that remembers its line, the same for YAML and JSON, so that what
// is checked afterwards (reader.hpp) is checked once. Made by yaml_document.hpp and
// json_document.hpp. Knows no keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::detail {

struct NodeEntry;

/// One value of a file. What a plain word is (`yes`, `4`, `null`) follows YAML 1.1, as in Python;
/// `text` keeps the word.
struct Node {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  std::string text;                 ///< of a scalar, as written
  int line = 0;                     ///< of a map's entry: where its key is
  std::vector<NodeEntry> children;  ///< of a map with keys, of a list with empty ones

  /// A map's entry, or nullptr.
  [[nodiscard]] const Node* find(std::string_view key) const;
};

/// A key and its value. A struct and not a std::pair: clang refuses a vector of pairs that are not
/// complete yet.
struct NodeEntry {
  std::string key;
  Node value;
};

/// A configuration is small. The limits keep a file that is made to exhaust its reader from filling
/// the memory or the stack.
inline constexpr int deepest_node = 32;
inline constexpr int most_nodes = 20'000;

/// "a number", "a list", ...: for messages.
std::string_view kind_name(Node::Kind kind);

/// What a word without quotes is in YAML 1.1.
Node::Kind kind_of_plain(std::string_view text);

/// A plain word of kind boolean that means true.
bool is_true(std::string_view text);

/// YAML reads `text` back as this text without quotes around it, in Python too. Errs towards
/// quotes.
bool is_plain_text(std::string_view text);

}  // namespace accel::detail
