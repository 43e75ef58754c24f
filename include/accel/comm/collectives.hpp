// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Lifts the communicator's calls to nested values: whatever detail/nested.hpp can walk, tensor by
// tensor, in an order that is the same on every rank. Comes after communicator.hpp; the accelerator
// offers these as members.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/nested.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <map>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel {

/// A value that may hold tensors: a tensor, or a container or struct of them.
template <class T>
concept NestedTensors = detail::can_hold<at::Tensor, std::remove_cvref_t<T>>::value;

namespace detail {

/// A copy of `value` with each tensor replaced by `transform(tensor, part)`, where part says which of
/// how many tensors it is, so that ranks with different structures find out. A value without any is
/// transformed too, as part 0: another rank's may have some.
template <class T, class Transform>
[[nodiscard]] T map_tensors(const T& value, Transform&& transform) {
  static_assert(
      holds_only<at::Tensor, T>(),
      "accel: a collective of a nested value needs tensors only; use a struct or tuple of "
      "the tensors, and gather_for_metrics or all_gather_object for the other members");
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return transform(value, 1);
  } else {
    int64_t count = 0, index = 0;
    T copy = value;
    for_each_leaf<at::Tensor>(copy, [&](const at::Tensor&) { ++count; });
    if (count == 0) (void)transform(at::Tensor(), int64_t{0});
    for_each_leaf<at::Tensor>(copy, [&](at::Tensor& tensor) {
      const int64_t part = count == 1 ? 1 : (index++ << 32) + count;
      tensor = transform(std::as_const(tensor), part);
    });
    return copy;
  }
}

}  // namespace detail

/// Every rank's tensors, concatenated along dim 0 in rank order (0-dim tensors become one row
/// each). Every rank must call this, with the same structure and, but for dim 0, the same shapes;
/// else Error(collective) on all of them.
template <NestedTensors T>
[[nodiscard]] T gather(const Communicator& communicator, const T& value,
                       const CallSite& where = CallSite::current()) {
  return detail::map_tensors(value, [&](const at::Tensor& tensor, int64_t part) {
    return communicator.all_gather(tensor, where, part);
  });
}

/// Every tensor combined over the ranks, as a new value. Every rank must call this.
template <NestedTensors T>
[[nodiscard]] T reduce(const Communicator& communicator, const T& value,
                       Reduction reduction = Reduction::sum,
                       const CallSite& where = CallSite::current()) {
  return detail::map_tensors(value, [&](const at::Tensor& tensor, int64_t part) {
    return communicator.all_reduce(tensor, reduction, where, part);
  });
}

/// Rank `from_process`'s tensors on every rank. Every rank must call this, with the same structure
/// and shapes.
template <NestedTensors T>
[[nodiscard]] T broadcast(const Communicator& communicator, const T& value, int from_process = 0,
                          const CallSite& where = CallSite::current()) {
  return detail::map_tensors(value, [&](const at::Tensor& tensor, int64_t part) {
    return communicator.broadcast(tensor, from_process, where, part);
  });
}

namespace detail {

/// `tensor` with `dim` extended to the longest over the ranks by `pad_index`; the same tensor where
/// nothing is missing.
at::Tensor pad_across_processes(const Communicator& communicator, const at::Tensor& tensor,
                                int64_t dim, double pad_index, bool pad_first,
                                const CallSite& where, int64_t part);

}  // namespace detail

/// Makes every tensor as long in `dim` as the longest of all ranks, filling with `pad_index` after
/// the values (before them with `pad_first`), so that it can be gathered. The dtype is kept. A
/// tensor that has no such dim is left alone. Every rank must call this.
template <NestedTensors T>
[[nodiscard]] T pad_across_processes(const Communicator& communicator, const T& value,
                                     int64_t dim = 0, double pad_index = 0, bool pad_first = false,
                                     const CallSite& where = CallSite::current()) {
  return detail::map_tensors(value, [&](const at::Tensor& tensor, int64_t part) {
    return detail::pad_across_processes(communicator, tensor, dim, pad_index, pad_first, where,
                                        part);
  });
}

/// The half-open range of `count` items that belongs to a rank: as even as can be, the first ranks
/// one longer.
[[nodiscard]] inline std::pair<int64_t, int64_t> share_of(int64_t count, int rank,
                                                          int size) noexcept {
  const int64_t each = count / size;
  const int64_t longer = count % size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, longer);
  return {begin, begin + each + (rank < longer ? 1 : 0)};
}

/// This rank's share of a list: a contiguous part, as even as can be. With `apply_padding` every
/// rank gets as many as the longest share, the missing ones being copies of the last item of the
/// whole list. Local; no communication.
template <class Item>
[[nodiscard]] std::vector<Item> split_between_processes(const Communicator& communicator,
                                                        const std::vector<Item>& items,
                                                        bool apply_padding = false) {
  const auto count = static_cast<int64_t>(items.size());
  const auto [begin, end] = share_of(count, communicator.rank(), communicator.size());
  std::vector<Item> share(items.begin() + begin, items.begin() + end);
  if (apply_padding && count > 0) {
    const auto longest = (count + communicator.size() - 1) / communicator.size();
    share.resize(static_cast<size_t>(longest), items.back());
  }
  return share;
}

/// The same for the rows of a tensor (dim 0).
[[nodiscard]] at::Tensor split_between_processes(const Communicator& communicator,
                                                 const at::Tensor& rows,
                                                 bool apply_padding = false);

namespace detail {

template <class T>
inline constexpr bool is_list = false;
template <class Item, class A>
inline constexpr bool is_list<std::vector<Item, A>> = true;

/// Whether a type is a table: a map, a tuple or a struct that has columns, which are lists or tensors.
template <class T>
struct has_columns
    : std::bool_constant<std::is_same_v<T, at::Tensor> || is_list<T> || HanaStruct<T>> {};
template <class... T>
struct has_columns<std::tuple<T...>> : std::bool_constant<(has_columns<T>::value || ...)> {};
template <class A, class B>
struct has_columns<std::pair<A, B>>
    : std::bool_constant<has_columns<A>::value || has_columns<B>::value> {};
template <class K, class T, class C, class A>
struct has_columns<std::map<K, T, C, A>> : has_columns<T> {};
template <class K, class T, class H, class E, class A>
struct has_columns<std::unordered_map<K, T, H, E, A>> : has_columns<T> {};

/// Calls `visit(column)` on every column of a table, and of the tables in it.
template <class Table, class Visit>
void for_each_column(Table& table, Visit&& visit) {
  using Plain = std::remove_const_t<Table>;
  if constexpr (std::is_same_v<Plain, at::Tensor> || is_list<Plain>)
    visit(table);
  else if constexpr (is_map<Plain>)
    for (auto& [key, column] : table) for_each_column(column, visit);
  else if constexpr (is_tuple<Plain>)
    std::apply([&](auto&... column) { (for_each_column(column, visit), ...); }, table);
  else if constexpr (HanaStruct<Plain>)
    boost::hana::for_each(boost::hana::accessors<Plain>(), [&](auto member) {
      for_each_column(boost::hana::second(member)(table), visit);
    });
}

/// Throws Error(usage) unless the columns of a table are of one length.
void require_one_length(const Communicator& communicator, const std::vector<int64_t>& lengths);

}  // namespace detail

/// A table: a map, a tuple or a struct that Boost.Hana knows, whose columns are lists and tensors.
template <class T>
concept Table = (detail::is_map<T> || detail::is_tuple<T> || detail::HanaStruct<T>) &&
                detail::has_columns<T>::value;

/// The same for a table: this rank's share of every column. They have one length, else Error(usage);
/// what is no list and no tensor stays as it is.
template <Table T>
[[nodiscard]] T split_between_processes(const Communicator& communicator, const T& table,
                                        bool apply_padding = false) {
  std::vector<int64_t> lengths;
  T share = table;
  detail::for_each_column(share, [&]<class Column>(const Column& column) {
    if constexpr (std::is_same_v<Column, at::Tensor>)
      lengths.push_back(column.dim() == 0 ? -1 : column.size(0));
    else
      lengths.push_back(std::ssize(column));
  });
  detail::require_one_length(communicator, lengths);
  detail::for_each_column(share, [&](auto& column) {
    column = split_between_processes(communicator, std::as_const(column), apply_padding);
  });
  return share;
}

}  // namespace accel
