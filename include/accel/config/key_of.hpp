// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// From a member of Config to a line of the table of keys: type, kind, and how it is read and
// written follow from the member. Used by impl/config/keys.ipp only.
#pragma once

#include <accel/config/key.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel::detail {

template <auto First, auto... Rest>
auto& member(auto& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return member<Rest...>(object.*First);
  }
}

template <auto... Path>
using Member = std::remove_reference_t<decltype(member<Path...>(std::declval<Config&>()))>;

template <class Type>
struct Plain {
  using type = Type;
};
template <class Type>
struct Plain<std::optional<Type>> {
  using type = Type;
};

template <class Type>
constexpr KeyKind kind_of() {
  if constexpr (std::is_same_v<Type, bool>) return KeyKind::boolean;
  if constexpr (std::is_enum_v<Type>) return KeyKind::choice;
  if constexpr (std::is_integral_v<Type>) return KeyKind::integer;
  if constexpr (std::is_floating_point_v<Type>) return KeyKind::number;
  if constexpr (std::is_same_v<Type, std::vector<std::string>>) return KeyKind::names;
  return KeyKind::text;
}

template <class Type>
Value to_value(const Type& plain) {
  if constexpr (std::is_enum_v<Type>) {
    return std::string(spelling(plain));
  } else if constexpr (std::is_integral_v<Type> && !std::is_same_v<Type, bool>) {
    return static_cast<std::int64_t>(plain);
  } else {
    return plain;
  }
}

template <class Type>
Type from_value(Value&& value) {
  if constexpr (std::is_enum_v<Type>) {
    const auto& names = spellings<Type>;
    const auto found = std::find(names.begin(), names.end(), std::get<std::string>(value));
    return static_cast<Type>(found - names.begin());
  } else if constexpr (std::is_integral_v<Type> && !std::is_same_v<Type, bool>) {
    return static_cast<Type>(std::get<std::int64_t>(value));
  } else {
    return std::get<Type>(std::move(value));
  }
}

template <auto... Path>
std::optional<Value> get(const Config& config) {
  const auto& field = member<Path...>(config);
  if constexpr (requires { field.has_value(); }) {
    return field ? std::optional<Value>(to_value(*field)) : std::nullopt;
  } else {
    return to_value(field);
  }
}

template <auto... Path>
void set(Config& config, std::optional<Value> value) {
  auto& field = member<Path...>(config);
  if (!value) {
    static const Config standard;
    field = member<Path...>(standard);
    return;
  }
  field = from_value<typename Plain<Member<Path...>>::type>(std::move(*value));
}

// What a line of the table may say beyond name, member and help.
struct More {
  std::array<std::string_view, 2> variables{};
  std::span<const std::string_view> choices{};
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::string_view flag{};
  bool ours = false;
  bool always = false;
  bool kept = false;
  bool numbered = false;
};

constexpr std::string_view after_section(std::string_view name) {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

template <auto... Path>
constexpr Key key(std::string_view name, std::string_view help, const More& more = {}) {
  using Type = typename Plain<Member<Path...>>::type;
  Key made;
  made.name = name;
  made.flag = more.flag.empty() ? after_section(name) : more.flag;
  made.help = help;
  made.kind = more.choices.empty() ? kind_of<Type>() : KeyKind::choice;
  made.choices = more.choices;
  if constexpr (std::is_enum_v<Type>) made.choices = spellings<Type>;
  made.variables = more.variables;
  made.least = more.least;
  made.most = more.most;
  if constexpr (std::is_same_v<Type, int>) {
    made.most = std::min<std::int64_t>(more.most, std::numeric_limits<int>::max());
  }
  made.ours = more.ours;
  made.always = more.always;
  made.kept = more.kept;
  made.numbered = more.numbered;
  made.get = get<Path...>;
  made.set = set<Path...>;
  return made;
}

}  // namespace accel::detail
