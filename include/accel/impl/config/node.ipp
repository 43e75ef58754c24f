// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/node.hpp.
#include <accel/config/node.hpp>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <system_error>

namespace accel::detail {
namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

bool is_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || (text[0] != '.' && (text[0] < '0' || text[0] > '9'))) return false;
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return stop == text.data() + text.size() && error != std::errc::invalid_argument;
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, value] : children) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string_view kind_name(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::null: return "nothing";
    case Node::Kind::boolean: return "true or false";
    case Node::Kind::number: return "a number";
    case Node::Kind::text: return "a text";
    case Node::Kind::list: return "a list";
    case Node::Kind::map: break;
  }
  return "a section";
}

Node::Kind kind_of_plain(std::string_view text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return Node::Kind::null;
  if (is_one_of(text, {"true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no",
                       "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})) {
    return Node::Kind::boolean;
  }
  return is_number(text) ? Node::Kind::number : Node::Kind::text;
}

bool is_true(std::string_view text) {
  return is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"});
}

bool is_plain_text(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_safe = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           is_one_of(std::string_view(&c, 1), {"_", "/", ".", "-"});
  };
  return !text.empty() && (is_letter(text[0]) || text[0] == '/') &&
         std::ranges::all_of(text, is_safe) && kind_of_plain(text) == Node::Kind::text &&
         !is_one_of(text, {"y", "Y", "n", "N"});
}

}  // namespace accel::detail
