// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/key.hpp.
#include <accel/config/key.hpp>
#include <accel/config/wording.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>

namespace accel {
namespace {

std::string capitals(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return result;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n\v\f";
  const auto first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::optional<Value> parse_boolean(std::string_view text, std::string& why) {
  const auto word = capitals(text);
  for (const auto* yes : {"TRUE", "YES", "ON", "Y", "T", "1"}) {
    if (word == yes) return true;
  }
  for (const auto* no : {"FALSE", "NO", "OFF", "N", "F", "0"}) {
    if (word == no) return false;
  }
  why = fmt::format("{} is not true or false", detail::in_quotes(text));
  return std::nullopt;
}

std::string range_of(const Key& key) {
  return key.most >= std::numeric_limits<int>::max() ? fmt::format("{} or more", key.least)
                                                     : fmt::format("{} to {}", key.least, key.most);
}

// A leading zero is refused because YAML 1.1 reads 010 as eight and everybody else as ten.
std::optional<Value> parse_integer(const Key& key, std::string_view text, std::string& why) {
  std::int64_t number = 0;
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const auto digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (stop != end || error == std::errc::invalid_argument ||
      (digits.size() > 1 && digits.front() == '0')) {
    why = fmt::format("{} is not a whole number; write one ({})", detail::in_quotes(text),
                      range_of(key));
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range || number < key.least || number > key.most) {
    why = fmt::format("{} is out of range; write {}", detail::in_quotes(text), range_of(key));
    return std::nullopt;
  }
  return number;
}

std::optional<Value> parse_number(std::string_view text, std::string& why) {
  double number = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) {
    why = fmt::format("{} is not a finite number", detail::in_quotes(text));
    return std::nullopt;
  }
  return number;
}

std::optional<Value> parse_choice(const Key& key, std::string_view text, std::string& why) {
  const auto word = capitals(text);
  for (const auto choice : key.choices) {
    if (capitals(choice) == word) return std::string(choice);
  }
  const bool digit = text.size() == 1 && text[0] >= '1' && text[0] <= '9';
  if (key.numbered && digit && static_cast<std::size_t>(text[0] - '1') < key.choices.size()) {
    return std::string(key.choices[static_cast<std::size_t>(text[0] - '1')]);
  }
  why = fmt::format("{} is not one of {}{}", detail::in_quotes(text), fmt::join(key.choices, ", "),
                    detail::did_you_mean(text, key.choices));
  return std::nullopt;
}

std::optional<Value> parse_names(std::string_view text, std::string& why) {
  std::vector<std::string> names;
  if (trimmed(text).empty()) return names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    const auto name = trimmed(text.substr(begin, comma - begin));
    if (name.empty()) {
      why = fmt::format("{} has an empty name between commas", detail::in_quotes(text));
      return std::nullopt;
    }
    names.emplace_back(name);
    begin = comma + 1;
  }
  return names;
}

}  // namespace

std::string_view Key::section() const {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

std::string_view Key::leaf() const {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::vector<std::string> environment_names(const Key& key) {
  const auto end = capitals(key.flag);
  std::vector<std::string> names{"ACCEL_" + end, "ACCELERATE_" + end};
  for (const auto name : key.variables) {
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

std::string to_text(const Value& value) {
  struct Writer {
    std::string operator()(bool truth) const { return truth ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<std::string>& names) const {
      return fmt::format("{}", fmt::join(names, ","));
    }
  };
  return std::visit(Writer{}, value);
}

std::optional<Value> parse_value(const Key& key, std::string_view text, std::string& why) {
  switch (key.kind) {
    case KeyKind::boolean: return parse_boolean(trimmed(text), why);
    case KeyKind::integer: return parse_integer(key, trimmed(text), why);
    case KeyKind::number: return parse_number(trimmed(text), why);
    case KeyKind::choice: return parse_choice(key, trimmed(text), why);
    case KeyKind::names: return parse_names(text, why);
    case KeyKind::text: break;
  }
  return std::string(text);
}

}  // namespace accel
