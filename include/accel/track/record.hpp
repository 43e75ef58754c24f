// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What one call of `accelerator.log` leaves: names and values, flat, in the order they were given.
// Built on nlohmann/json, so that braces nest as they do there. Flattening happens here, once, so
// that every tracker sees the same names; it does not write anything. Comes before tracker.hpp,
// which says who takes records.
#pragma once

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// JSON that keeps the order in which keys were given.
using Json = nlohmann::ordered_json;

/// The names and values of one step: `Record{{"loss", 1.5}, {"eval", {{"acc", .5}}}, {"note",
/// "x"}}`.
///
/// A value is a number, a truth value or a text; give each name once. A nested object becomes
/// "eval/acc". Anything else (a list, null, a tensor of several elements) is left out and named in
/// `skipped()`. Text that is no UTF-8 is repaired, since no format of ours could hold it.
class Record {
 public:
  /// A value that was left out, and why.
  struct Skipped {
    std::string key;
    std::string reason;
  };

  Record() = default;
  Record(Json::initializer_list_t values) : Record(flatten_tag{}, Json(values)) {}

  /// From a json object, a map of names to values, or anything else that nlohmann/json makes an
  /// object of.
  template <class Values>
    requires(!std::same_as<std::remove_cvref_t<Values>, Record> &&
             std::constructible_from<Json, Values>)
  Record(Values&& values) : Record(flatten_tag{}, Json(std::forward<Values>(values))) {}

  /// A flat JSON object: "eval/acc" to .5.
  [[nodiscard]] const Json& values() const noexcept { return values_; }
  [[nodiscard]] const std::vector<Skipped>& skipped() const noexcept { return skipped_; }

 private:
  struct flatten_tag {};
  Record(flatten_tag, const Json& values);

  void flatten(const std::string& prefix, const Json& object, int depth);

  Json values_ = Json::object();
  std::vector<Skipped> skipped_;
};

namespace detail {

/// A tensor of LibTorch, or of a library that spells these four members the same way.
template <class T>
concept TensorLike = requires(const T& tensor) {
  { tensor.numel() } -> std::convertible_to<std::int64_t>;
  { tensor.is_floating_point() } -> std::convertible_to<bool>;
  { tensor.template item<double>() } -> std::same_as<double>;
  { tensor.template item<std::int64_t>() } -> std::same_as<std::int64_t>;
};

/// `text`, with every byte that is no UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string text);

}  // namespace detail
}  // namespace accel

/// `{"loss", loss}` takes a tensor of one element as it is: its value is read (and waited for) at
/// this place.
template <accel::detail::TensorLike T>
struct nlohmann::adl_serializer<T, void> {
  template <class AnyJson>
  static void to_json(AnyJson& json, const T& tensor) {
    if (tensor.numel() != 1)
      json = AnyJson::array();
    else if (tensor.is_floating_point())
      json = tensor.template item<double>();
    else
      json = tensor.template item<std::int64_t>();
  }
};
