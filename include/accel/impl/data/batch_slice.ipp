// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of batch_slice.hpp.
#include <accel/data/batch_slice.hpp>

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accel::detail {

at::Tensor rows_of(const at::Tensor& tensor, const RowRange& range) {
  if (!tensor.defined() || tensor.dim() == 0) return tensor;
  if (tensor.size(0) % range.rows != 0)
    fail(ErrorCategory::data,
         "a batch of {} samples was dealt out, and cannot be cut for the ranks: it has a tensor of "
         "shape [{}]; give its tensors a row a sample, or pass a slice function",
         range.rows, fmt::join(tensor.sizes(), ", "));
  const auto each = tensor.size(0) / range.rows;
  return tensor.narrow(0, range.first * each, range.count * each);
}

void fail_rows(std::size_t elements, const RowRange& range) {
  fail(
      ErrorCategory::data,
      "a batch of {} samples was dealt out, and cannot be cut for the ranks: it has a vector of {} "
      "elements; give its vectors an element a sample, or pass a slice function",
      range.rows, elements);
}

std::optional<std::int64_t> rows_per_sample(const std::vector<std::int64_t>& rows,
                                            const std::vector<RoundShare>& shares) {
  std::optional<std::int64_t> each;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const auto given = shares[rank].given;
    if (given == 0 ? rows[rank] != 0 : rows[rank] % given != 0) return std::nullopt;
    if (given == 0) continue;
    if (each.value_or(rows[rank] / given) != rows[rank] / given) return std::nullopt;
    each = rows[rank] / given;
  }
  return each;
}

at::Tensor real_rows(const at::Tensor& gathered, const std::vector<RoundShare>& shares,
                     std::int64_t each) {
  std::vector<at::Tensor> real;
  std::int64_t first = 0;
  for (const auto& share : shares) {
    real.push_back(gathered.narrow(0, first * each, share.real * each));
    first += share.given;
  }
  return at::cat(real);
}

}  // namespace accel::detail
