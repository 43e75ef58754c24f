// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Walks the leaves of a nested value: a batch, a metric, whatever a user groups tensors in. A value
// is a leaf, or one of
//   std::vector, std::array, std::pair, std::tuple, std::optional, std::map, std::unordered_map of
//   values, a struct that Boost.Hana knows (BOOST_HANA_DEFINE_STRUCT or BOOST_HANA_ADAPT_STRUCT),
//   a type with `data` and `target` members, or `data` alone, like torch::data::Example.
// Anything else is passed through unchanged. Knows nothing of LibTorch: the leaf type is a
// parameter.
#pragma once

#include <boost/hana/accessors.hpp>
#include <boost/hana/at_key.hpp>
#include <boost/hana/concept/struct.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>
#include <boost/hana/tuple.hpp>
#include <boost/hana/unpack.hpp>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel::detail {

template <class T>
inline constexpr bool is_sequence = false;
template <class T, class A>
inline constexpr bool is_sequence<std::vector<T, A>> = true;
template <class T, std::size_t N>
inline constexpr bool is_sequence<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_map = false;
template <class K, class T, class C, class A>
inline constexpr bool is_map<std::map<K, T, C, A>> = true;
template <class K, class T, class H, class E, class A>
inline constexpr bool is_map<std::unordered_map<K, T, H, E, A>> = true;

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
concept HanaStruct = boost::hana::Struct<T>::value;

template <class T>
concept DataAndTarget = requires(T& value) {
  value.data;
  value.target;
} && !std::is_pointer_v<T>;

// A member function named data, as containers have it, does not satisfy this.
template <class T>
concept DataOnly = !DataAndTarget<T> && requires(T& value) { value.data; } && !std::is_pointer_v<T>;

/// Whether a value of type `T` can hold a leaf of type `Leaf` at all.
template <class Leaf, class T>
struct can_hold : std::bool_constant<std::is_same_v<std::remove_cv_t<T>, Leaf> || HanaStruct<T> ||
                                     DataAndTarget<T> || DataOnly<T>> {};
template <class Leaf, class T, class A>
struct can_hold<Leaf, std::vector<T, A>> : can_hold<Leaf, T> {};
template <class Leaf, class T, std::size_t N>
struct can_hold<Leaf, std::array<T, N>> : can_hold<Leaf, T> {};
template <class Leaf, class T>
struct can_hold<Leaf, std::optional<T>> : can_hold<Leaf, T> {};
template <class Leaf, class... T>
struct can_hold<Leaf, std::tuple<T...>> : std::bool_constant<(can_hold<Leaf, T>::value || ...)> {};
template <class Leaf, class A, class B>
struct can_hold<Leaf, std::pair<A, B>>
    : std::bool_constant<can_hold<Leaf, A>::value || can_hold<Leaf, B>::value> {};
template <class Leaf, class K, class T, class C, class A>
struct can_hold<Leaf, std::map<K, T, C, A>> : can_hold<Leaf, T> {};
template <class Leaf, class K, class T, class H, class E, class A>
struct can_hold<Leaf, std::unordered_map<K, T, H, E, A>> : can_hold<Leaf, T> {};

/// Whether a value of type `T` holds leaves of type `Leaf` and nothing that would be passed through.
template <class Leaf, class T>
consteval bool holds_only() {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, Leaf>)
    return true;
  else if constexpr (is_sequence<Plain> || is_optional<Plain>)
    return holds_only<Leaf, typename Plain::value_type>();
  else if constexpr (is_map<Plain>)
    return holds_only<Leaf, typename Plain::mapped_type>();
  else if constexpr (is_tuple<Plain>)
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (holds_only<Leaf, std::tuple_element_t<I, Plain>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<Plain>>());
  else if constexpr (HanaStruct<Plain>)
    return decltype(boost::hana::unpack(boost::hana::accessors<Plain>(), [](auto... member) {
      return std::bool_constant<(holds_only<Leaf, std::remove_cvref_t<decltype(boost::hana::second(
                                                      member)(std::declval<Plain&>()))>>() &&
                                 ...)>{};
    }))::value;
  else if constexpr (DataAndTarget<Plain>)
    return holds_only<Leaf, std::remove_cvref_t<decltype(std::declval<Plain&>().data)>>() &&
           holds_only<Leaf, std::remove_cvref_t<decltype(std::declval<Plain&>().target)>>();
  else if constexpr (DataOnly<Plain>)
    return holds_only<Leaf, std::remove_cvref_t<decltype(std::declval<Plain&>().data)>>();
  else
    return false;
}

/// Calls `visit(leaf)` on every leaf of type `Leaf` in `value`, in a fixed order (declaration,
/// index, key), so that ranks that hold the same structure visit the same leaves. The leaves may be
/// changed in place.
template <class Leaf, class T, class Visit>
void for_each_leaf(T& value, Visit&& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Leaf>) {
    visit(value);
  } else if constexpr (is_sequence<Plain> && can_hold<Leaf, Plain>::value) {
    for (auto& element : value) for_each_leaf<Leaf>(element, visit);
  } else if constexpr (is_map<Plain>) {
    // An unordered map has no order that ranks share: its keys are visited sorted.
    std::map<typename Plain::key_type, decltype(&value.begin()->second)> sorted;
    for (auto& [key, element] : value) sorted.emplace(key, &element);
    for (auto& [key, element] : sorted) for_each_leaf<Leaf>(*element, visit);
  } else if constexpr (is_tuple<Plain>) {
    std::apply([&](auto&... element) { (for_each_leaf<Leaf>(element, visit), ...); }, value);
  } else if constexpr (is_optional<Plain>) {
    if (value.has_value()) for_each_leaf<Leaf>(*value, visit);
  } else if constexpr (HanaStruct<Plain>) {
    boost::hana::for_each(boost::hana::accessors<Plain>(), [&](auto member) {
      for_each_leaf<Leaf>(boost::hana::second(member)(value), visit);
    });
  } else if constexpr (DataAndTarget<Plain>) {
    for_each_leaf<Leaf>(value.data, visit);
    for_each_leaf<Leaf>(value.target, visit);
  } else if constexpr (DataOnly<Plain>) {
    for_each_leaf<Leaf>(value.data, visit);
  }
}

/// A copy of `value` with every leaf replaced by `transform(leaf)`, which returns a `Leaf`.
template <class Leaf, class T, class Transform>
[[nodiscard]] T map_leaves(T value, Transform&& transform) {
  for_each_leaf<Leaf>(value, [&](Leaf& leaf) { leaf = transform(std::as_const(leaf)); });
  return value;
}

}  // namespace accel::detail
