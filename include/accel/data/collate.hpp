// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes one batch of the samples that a dataset gave: the default rule of a loader, which a
// function of the user replaces. Comes after dataset.hpp; the batch has the samples' structure, so
// that detail/nested.hpp can walk it.
//
//   sample                            batch
//   at::Tensor                        the tensors stacked along a new dim 0
//   number                            a 1-dim tensor of bool, int64, float32 or float64
//   vector or array of numbers        a 2-dim tensor, one row a sample; lengths must be equal
//   std::string                       a std::vector of them
//   pair, tuple, torch Example        the same, of batches; an Example without a target is its data
//   other vector or array, map        the same, of batches; lengths and keys must be equal
//   struct that Boost.Hana knows      the same struct; members must have the type of their batch
#pragma once

#include <accel/detail/error.hpp>
#include <accel/detail/nested.hpp>
#include <accel/detail/unmet.hpp>

#include <ATen/core/Tensor.h>
#include <boost/hana/accessors.hpp>
#include <boost/hana/first.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>
#include <c10/core/ScalarType.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Only named here: including it costs ten seconds, and who has such samples has included it.
namespace torch::data {
template <typename Data, typename Target>
struct Example;
}  // namespace torch::data

namespace accel {
namespace detail {

/// Stacks tensors of one shape and dtype. Throws Error(data) that names the first two that differ.
at::Tensor stack_samples(const std::vector<at::Tensor>& samples);

/// An uninitialised contiguous tensor on the CPU.
at::Tensor empty_batch(c10::IntArrayRef sizes, c10::ScalarType type);

[[noreturn]] void fail_lengths(const char* what, std::size_t first, std::size_t other,
                               std::size_t sample);

template <class T>
concept Number = std::is_arithmetic_v<T>;

/// The type that numbers have in a batch. Integers become int64, which is what class indices have
/// to be.
template <Number T>
using BatchNumber = std::conditional_t<
    std::is_same_v<T, bool>, bool,
    std::conditional_t<std::is_floating_point_v<T>,
                       std::conditional_t<std::is_same_v<T, float>, float, double>, std::int64_t>>;

/// The rule above. One function a kind of sample; each takes the column of that part of all
/// samples.
struct Collator {
  template <class T>
  static auto rows(std::vector<T>) {
    static_assert(
        unmet<"no rule", T>,
        "accel: default_collate needs tensors, numbers, strings, or containers and structs of "
        "them; adapt the struct with BOOST_HANA_ADAPT_STRUCT, or pass a collate function");
  }

  static at::Tensor rows(const std::vector<at::Tensor>& column) { return stack_samples(column); }

  static std::vector<std::string> rows(std::vector<std::string> column) { return column; }

  template <Number T>
  static at::Tensor rows(std::vector<T> column) {
    using Stored = BatchNumber<T>;
    auto batch = empty_batch({static_cast<std::int64_t>(column.size())},
                             c10::CppTypeToScalarType<Stored>::value);
    auto* out = batch.template mutable_data_ptr<Stored>();
    for (const T number : column) *out++ = static_cast<Stored>(number);
    return batch;
  }

  template <class T>
    requires is_sequence<T> && Number<typename T::value_type>
  static at::Tensor rows(std::vector<T> column) {
    using Stored = BatchNumber<typename T::value_type>;
    check_lengths(column);
    auto batch = empty_batch(
        {static_cast<std::int64_t>(column.size()), static_cast<std::int64_t>(column[0].size())},
        c10::CppTypeToScalarType<Stored>::value);
    auto* out = batch.template mutable_data_ptr<Stored>();
    for (const T& row : column)
      for (const auto number : row) *out++ = static_cast<Stored>(number);
    return batch;
  }

  template <class T, std::size_t N>
    requires(!Number<T>)
  static auto rows(std::vector<std::array<T, N>> column) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      using Batch = decltype(rows(std::vector<T>()));
      return std::array<Batch, N>{
          rows(part(column, [](auto& sample) -> T& { return sample[I]; }))...};
    }(std::make_index_sequence<N>());
  }

  template <class T, class A>
    requires(!Number<T>)
  static auto rows(std::vector<std::vector<T, A>> column) {
    check_lengths(column);
    std::vector<decltype(rows(std::vector<T>()))> batch;
    for (std::size_t i = 0; i < column[0].size(); ++i)
      batch.push_back(rows(part(column, [i](auto& sample) -> T& { return sample[i]; })));
    return batch;
  }

  template <class T>
    requires is_map<T>
  static auto rows(std::vector<T> column) {
    using Value = typename T::mapped_type;
    std::map<typename T::key_type, decltype(rows(std::vector<Value>()))> batch;
    check_lengths(column);
    for (const auto& [key, first] : column[0])
      batch.emplace(
          key, rows(part(column, [&key](T& sample) -> Value& {
            const auto found = sample.find(key);
            if (found == sample.end())
              fail(ErrorCategory::data,
                   "the samples of a batch are maps with different keys; pass a collate function");
            return found->second;
          })));
    return batch;
  }

  template <class... T>
  static auto rows(std::vector<std::tuple<T...>> column) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::make_tuple(
          rows(part(column, [](auto& sample) -> T& { return std::get<I>(sample); }))...);
    }(std::index_sequence_for<T...>());
  }

  template <class A, class B>
  static auto rows(std::vector<std::pair<A, B>> column) {
    return std::make_pair(rows(part(column, [](auto& sample) -> A& { return sample.first; })),
                          rows(part(column, [](auto& sample) -> B& { return sample.second; })));
  }

  template <class Data, class Target>
  static auto rows(std::vector<torch::data::Example<Data, Target>> column) {
    auto data = rows(part(column, [](auto& sample) -> Data& { return sample.data; }));
    if constexpr (std::is_void_v<Target>) {
      return data;
    } else {
      auto target = rows(part(column, [](auto& sample) -> Target& { return sample.target; }));
      return torch::data::Example<decltype(data), decltype(target)>(std::move(data),
                                                                    std::move(target));
    }
  }

  template <HanaStruct T>
  static T rows(std::vector<T> column) {
    T batch;
    boost::hana::for_each(boost::hana::accessors<T>(), [&](auto member) {
      auto get = boost::hana::second(member);
      using Member = std::remove_cvref_t<decltype(get(batch))>;
      static_assert(
          std::is_same_v<decltype(rows(std::vector<Member>())), Member>,
          "accel: a struct is collated into a batch of its own type, so its members need the type "
          "that their batch has; use at::Tensor for numbers, or pass a collate function");
      get(batch) = rows(part(column, [get](T& sample) -> Member& { return get(sample); }));
    });
    return batch;
  }

 private:
  /// The same part of every sample, moved out of it.
  template <class Sample, class Get>
  static auto part(std::vector<Sample>& column, Get get) {
    std::vector<std::remove_cvref_t<decltype(get(column[0]))>> parts;
    parts.reserve(column.size());
    for (auto& sample : column) parts.push_back(std::move(get(sample)));
    return parts;
  }

  template <class Sequence>
  static void check_lengths(const std::vector<Sequence>& column) {
    for (std::size_t sample = 1; sample < column.size(); ++sample)
      if (column[sample].size() != column[0].size())
        fail_lengths(is_map<Sequence> ? "keys" : "elements", column[0].size(),
                     column[sample].size(), sample);
  }
};

}  // namespace detail

/// The default collation: see the table at the head of this file. What is no std::vector of samples
/// is a batch already, made by the dataset (torch's Stack<> does), and is passed on.
struct DefaultCollate {
  template <class Sample>
  [[nodiscard]] auto operator()(std::vector<Sample> samples) const {
    return detail::Collator::rows(std::move(samples));
  }

  template <class Batch>
  [[nodiscard]] Batch operator()(Batch batch) const {
    return batch;
  }
};
inline constexpr DefaultCollate default_collate{};

/// Passes on what the dataset gave: its batch, or the std::vector of samples.
struct NoCollate {
  template <class Samples>
  [[nodiscard]] Samples operator()(Samples samples) const {
    return samples;
  }
};
inline constexpr NoCollate no_collate{};

}  // namespace accel
