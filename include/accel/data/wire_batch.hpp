// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A batch as one tensor of bytes, and back: what rank 0 sends when it deals out the batches of a
// stream. The receiver knows the type of the batch; sizes, keys, dtypes and shapes travel with it.
// Comes after detail/nested.hpp; stream_feed.hpp sends.
#pragma once

#include <accel/detail/error.hpp>
#include <accel/detail/nested.hpp>

#include <ATen/core/Tensor.h>
#include <boost/hana/accessors.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>
#include <nlohmann/json.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel::detail {

/// What nested.hpp walks, of tensors, numbers and strings. Structs are taken at their word.
template <class T>
struct can_travel : std::bool_constant<std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T> ||
                                       std::is_same_v<T, std::string> ||
                                       (std::default_initializable<T> &&
                                        (HanaStruct<T> || DataAndTarget<T> || DataOnly<T>))> {};
template <class T, class A>
struct can_travel<std::vector<T, A>> : can_travel<T> {};
template <class T, std::size_t N>
struct can_travel<std::array<T, N>> : can_travel<T> {};
template <class T>
struct can_travel<std::optional<T>> : can_travel<T> {};
template <class... T>
struct can_travel<std::tuple<T...>> : std::bool_constant<(can_travel<T>::value && ...)> {};
template <class A, class B>
struct can_travel<std::pair<A, B>>
    : std::bool_constant<can_travel<A>::value && can_travel<B>::value> {};
template <class K, class T, class C, class A>
struct can_travel<std::map<K, T, C, A>>
    : std::bool_constant<can_travel<K>::value && can_travel<T>::value> {};
template <class K, class T, class H, class E, class A>
struct can_travel<std::unordered_map<K, T, H, E, A>>
    : std::bool_constant<can_travel<K>::value && can_travel<T>::value> {};

/// Takes a batch apart: what is no tensor into `facts`, in the order of the walk.
struct WireWriter {
  nlohmann::json facts = nlohmann::json::array();
  std::vector<at::Tensor> tensors{};

  void add(const at::Tensor& tensor);

  template <class T>
  void add(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      facts.push_back(value);
    } else if constexpr (is_sequence<T>) {
      facts.push_back(value.size());
      for (const auto& element : value) add(static_cast<const typename T::value_type&>(element));
    } else if constexpr (is_map<T>) {
      facts.push_back(value.size());
      for (const auto& [key, element] : value) {
        add(key);
        add(element);
      }
    } else if constexpr (is_tuple<T>) {
      std::apply([&](const auto&... element) { (add(element), ...); }, value);
    } else if constexpr (is_optional<T>) {
      facts.push_back(value.has_value());
      if (value) add(*value);
    } else if constexpr (HanaStruct<T>) {
      boost::hana::for_each(boost::hana::accessors<T>(),
                            [&](auto member) { add(boost::hana::second(member)(value)); });
    } else {
      add(value.data);
      if constexpr (DataAndTarget<T>) add(value.target);
    }
  }

  /// All of it, with `head` before it, as one tensor of bytes on the CPU.
  [[nodiscard]] at::Tensor bytes(const nlohmann::json& head) const;
};

/// Puts a batch together again. Its tensors are views of the bytes.
class WireReader {
 public:
  explicit WireReader(const at::Tensor& bytes);

  [[nodiscard]] const nlohmann::json& head() const noexcept { return head_; }

  void get(at::Tensor& tensor);

  template <class T>
  void get(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      value = fact().template get<T>();
    } else if constexpr (is_sequence<T>) {
      [[maybe_unused]] const auto size = fact().template get<std::size_t>();
      if constexpr (requires { value.resize(size); }) value.resize(size);
      for (auto&& element : value) element = one<typename T::value_type>();
    } else if constexpr (is_map<T>) {
      for (auto left = fact().template get<std::size_t>(); left > 0; --left) {
        auto key = one<typename T::key_type>();
        value.emplace(std::move(key), one<typename T::mapped_type>());
      }
    } else if constexpr (is_tuple<T>) {
      std::apply([&](auto&... element) { (get(element), ...); }, value);
    } else if constexpr (is_optional<T>) {
      if (fact().template get<bool>()) value.emplace(one<typename T::value_type>());
    } else if constexpr (HanaStruct<T>) {
      boost::hana::for_each(boost::hana::accessors<T>(),
                            [&](auto member) { get(boost::hana::second(member)(value)); });
    } else {
      get(value.data);
      if constexpr (DataAndTarget<T>) get(value.target);
    }
  }

  template <class T>
  [[nodiscard]] T one() {
    T value{};
    get(value);
    return value;
  }

 private:
  const nlohmann::json& fact() { return facts_.at(next_++); }

  at::Tensor bytes_;
  nlohmann::json head_, facts_;
  std::size_t next_ = 0;
  std::int64_t at_ = 0;  // where the next tensor lies
};

}  // namespace accel::detail
