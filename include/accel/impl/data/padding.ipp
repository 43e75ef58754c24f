// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of padding.hpp.
#include <accel/data/padding.hpp>

#include <ATen/ATen.h>

#include <algorithm>

namespace accel::detail {

PaddedBatch pad_rows(const std::vector<at::Tensor>& sequences, double value,
                     std::int64_t multiple) {
  if (multiple < 1)
    fail(ErrorCategory::config, "pad_to_multiple_of is {}, and must be at least 1", multiple);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto& sequence = sequences[i];
    if (!sequence.defined() || sequence.dim() != 1)
      fail(ErrorCategory::data,
           "PadCollate pads 1-dim tensors, and sample {} of a batch {}; flatten it in the dataset, "
           "or pass a collate function",
           i,
           sequence.defined() ? fmt::format("has {} dims", sequence.dim())
                              : std::string("is undefined"));
    if (sequence.scalar_type() != sequences[0].scalar_type())
      fail(ErrorCategory::data,
           "the samples of a batch have different types: {} for sample 0, {} for sample {}; "
           "convert them in the dataset",
           c10::toString(sequences[0].scalar_type()), c10::toString(sequence.scalar_type()), i);
    longest = std::max(longest, sequence.size(0));
  }
  longest = (longest + multiple - 1) / multiple * multiple;
  const auto rows = std::ssize(sequences);
  PaddedBatch batch;
  batch.values = at::full({rows, longest}, value,
                          sequences.empty() ? at::TensorOptions(at::kFloat)
                                            : sequences[0].options().requires_grad(false));
  batch.lengths = at::empty({rows}, at::TensorOptions(at::kLong));
  auto* lengths = batch.lengths.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& sequence = sequences[static_cast<std::size_t>(row)];
    lengths[row] = sequence.size(0);
    batch.values[row].narrow(0, 0, sequence.size(0)).copy_(sequence);
  }
  batch.mask =
      at::arange(longest, at::TensorOptions(at::kLong)).unsqueeze(0) < batch.lengths.unsqueeze(1);
  batch.mask = batch.mask.to(batch.values.device());
  batch.lengths = batch.lengths.to(batch.values.device());
  return batch;
}

}  // namespace accel::detail
