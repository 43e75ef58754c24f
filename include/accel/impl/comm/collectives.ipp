// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/collectives.hpp>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace accel {

at::Tensor detail::pad_across_processes(const Communicator& communicator, const at::Tensor& tensor,
                                        int64_t dim, double pad_index, bool pad_first,
                                        const CallSite& where, int64_t part) {
  const auto lengths = communicator.all_lengths(tensor, dim, where, part);
  if (part == 0) return tensor;
  const auto longest = *std::ranges::max_element(lengths);
  // Also where nothing is missing: a value that the dtype cannot hold is found on every rank.
  const auto filling = at::full({}, pad_index, tensor.options());
  const bool has_dim = dim >= -tensor.dim() && dim < tensor.dim();
  const int64_t axis = has_dim ? (dim < 0 ? dim + tensor.dim() : dim) : 0;
  if (!has_dim || tensor.size(axis) == longest) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(axis)] = longest;
  auto padded = filling.expand(sizes).clone();
  const int64_t start = pad_first ? longest - tensor.size(axis) : 0;
  padded.narrow(axis, start, tensor.size(axis)).copy_(tensor.detach());
  return padded;
}

void detail::require_one_length(const Communicator& communicator,
                                const std::vector<int64_t>& lengths) {
  if (std::ranges::adjacent_find(lengths, std::not_equal_to<>()) == lengths.end()) return;
  fail(ErrorCategory::usage,
       "accel: rank {}: split_between_processes divides a table whose columns have one length, and "
       "got columns of {}; split the others apart",
       communicator.rank(), fmt::join(lengths, ", "));
}

at::Tensor split_between_processes(const Communicator& communicator, const at::Tensor& rows,
                                   bool apply_padding) {
  if (rows.dim() == 0)
    detail::fail(ErrorCategory::usage,
                 "accel: rank {}: split_between_processes divides the rows of a tensor, and a "
                 "0-dim tensor has none",
                 communicator.rank());
  const auto count = rows.size(0);
  const auto [begin, end] = share_of(count, communicator.rank(), communicator.size());
  auto share = rows.slice(0, begin, end);
  const auto longest = (count + communicator.size() - 1) / communicator.size();
  if (!apply_padding || count == 0 || end - begin == longest) return share;
  return at::cat({share, rows.slice(0, count - 1, count)});
}

}  // namespace accel
