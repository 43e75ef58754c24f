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
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

/// A value that may hold tensors: a tensor, or a container or struct of them.
template <class T>
concept NestedTensors = detail::can_hold<at::Tensor, std::remove_cvref_t<T>>::value;

namespace detail {

/// A copy of `value` with each tensor replaced by `transform(tensor, part)`, where part says which of
/// how many tensors it is, so that ranks with different structures find out.
template <class T, class Transform>
[[nodiscard]] T map_tensors(const T& value, Transform&& transform) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return transform(value, 1);
  } else {
    int64_t count = 0, index = 0;
    T copy = value;
    for_each_leaf<at::Tensor>(copy, [&](const at::Tensor&) { ++count; });
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

}  // namespace accel
