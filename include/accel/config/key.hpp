// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One key of a configuration: its name, type, help, range, variables, and how a text becomes its
// value. Owns no list of keys: keys.hpp has the table.
#pragma once

#include <accel/config/config.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace accel {

/// What a key holds, whatever it came from.
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

/// As a person writes it in a flag or a variable: `true`, `4`, `bf16`, `A,B`.
std::string to_text(const Value& value);

/// The alternative of Value that a key holds; a choice is a text out of a list.
enum class KeyKind { boolean, integer, number, text, choice, names };

/// One key of a configuration.
struct Key {
  std::string_view name;  ///< "num_processes", or with its section "fsdp_config.fsdp_version"
  std::string_view flag;  ///< the flag without dashes, and in capitals the end of its variables
  std::string_view help;
  KeyKind kind = KeyKind::text;
  std::span<const std::string_view> choices;
  std::array<std::string_view, 2>
      variables;  ///< more environment variables, where Accelerate's differ from the rule
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  bool ours = false;      ///< Accelerate refuses a file with this key
  bool always = false;    ///< written to files even with its default value
  bool kept = false;      ///< read and written back; nothing in accel acts on it
  bool numbered = false;  ///< a choice can be given by its number, from 1

  std::optional<Value> (*get)(const Config&) = nullptr;  ///< nullopt: not set
  void (*set)(Config&, std::optional<Value> value) =
      nullptr;  ///< of the right kind; nullopt sets the default

  /// "fsdp_config", or "" at the top level.
  [[nodiscard]] std::string_view section() const;
  /// The name without its section.
  [[nodiscard]] std::string_view leaf() const;
};

/// The key's variables, the first that is set wins: ACCEL_<FLAG>, ACCELERATE_<FLAG>, then
/// Accelerate's own exceptions.
std::vector<std::string> environment_names(const Key& key);

/// What `text` means for this key. If it means nothing, returns nullopt and `why` says what the key
/// needs, as in "'four' is not a whole number". Integers are checked against the range, choices
/// against the list (any case).
std::optional<Value> parse_value(const Key& key, std::string_view text, std::string& why);

}  // namespace accel
