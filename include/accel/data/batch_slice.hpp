// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Cuts the part of one rank out of the batch of a round that rank 0 has dealt out: the default
// rule, which a function of the user replaces. Comes after detail/nested.hpp.
#pragma once

#include <accel/data/round_plan.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/nested.hpp>
#include <accel/detail/unmet.hpp>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace accel {

/// The samples of one rank in a batch of `rows` samples: [first, first + count).
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t rows = 0;

  bool operator==(const RowRange&) const = default;
};

/// A function that cuts `RowRange` out of a batch.
template <class Slice, class Batch>
concept SliceFor =
    (std::copy_constructible<Slice> &&
     requires(Slice& slice, const Batch& batch, const RowRange& range) {
       { slice(batch, range) } -> std::convertible_to<Batch>;
     }) ||
    detail::unmet<
        "accel: a slice function needs to take the batch of all ranks and a RowRange, and "
        "to return a batch of the same type; use that signature, or leave it out",
        Slice, Batch>;

namespace detail {

/// The rows of a tensor that has a row a sample, or a fixed number of them; a tensor without dims
/// belongs to all ranks. Throws Error(data) for any other.
at::Tensor rows_of(const at::Tensor& tensor, const RowRange& range);

[[noreturn]] void fail_rows(std::size_t elements, const RowRange& range);

template <class T>
void cut(T& value, const RowRange& range);

/// Whether a vector has an element a sample: it holds no tensors (a column of strings, or of
/// whatever collation leaves alone).
template <class T>
inline constexpr bool is_column = false;
template <class T, class A>
inline constexpr bool is_column<std::vector<T, A>> = !can_hold<at::Tensor, T>::value;

template <class T, class A>
void cut_elements(std::vector<T, A>& column, const RowRange& range) {
  if (static_cast<std::int64_t>(column.size()) != range.rows) fail_rows(column.size(), range);
  column =
      std::vector<T, A>(column.begin() + range.first, column.begin() + range.first + range.count);
}

template <class T>
void cut(T& value, const RowRange& range) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = rows_of(value, range);
  } else if constexpr (is_column<T>) {
    cut_elements(value, range);
  } else if constexpr (is_sequence<T>) {
    for (auto& element : value) cut(element, range);
  } else if constexpr (is_map<T>) {
    for (auto& [key, element] : value) cut(element, range);
  } else if constexpr (is_tuple<T>) {
    std::apply([&](auto&... element) { (cut(element, range), ...); }, value);
  } else if constexpr (is_optional<T>) {
    if (value) cut(*value, range);
  } else if constexpr (HanaStruct<T>) {
    boost::hana::for_each(boost::hana::accessors<T>(),
                          [&](auto member) { cut(boost::hana::second(member)(value), range); });
  } else if constexpr (DataAndTarget<T> || DataOnly<T>) {
    cut(value.data, range);
    if constexpr (DataAndTarget<T>) cut(value.target, range);
  }
}

}  // namespace detail

namespace detail {

/// How many rows of a tensor belong to a sample, where `rows` of it came from each rank whose batch is
/// its share; none where that is no whole number, the same for all ranks: then it has no row a sample.
[[nodiscard]] std::optional<std::int64_t> rows_per_sample(const std::vector<std::int64_t>& rows,
                                                          const std::vector<RoundShare>& shares);

/// What ranks have gathered, without the repeats of each: `gathered` holds the rows of `shares`, in
/// rank order, `each` for every sample.
at::Tensor real_rows(const at::Tensor& gathered, const std::vector<RoundShare>& shares,
                     std::int64_t each);

}  // namespace detail

/// The default: the rows of every tensor, the elements of a std::vector of strings; and of a batch
/// that is a std::vector of samples (accel::no_collate), those.
struct DefaultSlice {
  template <class Batch>
  [[nodiscard]] Batch operator()(const Batch& batch, const RowRange& range) const {
    Batch part = batch;
    detail::cut(part, range);
    return part;
  }
};

}  // namespace accel
