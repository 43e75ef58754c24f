// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of collate.hpp that need no template.
#include <accel/data/collate.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <fmt/ranges.h>

namespace accel::detail {

at::Tensor stack_samples(const std::vector<at::Tensor>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const at::Tensor& first = samples[0];
    const at::Tensor& other = samples[i];
    if (!other.defined())
      fail(ErrorCategory::data, "sample {} of a batch has an undefined tensor", i);
    if (other.sizes() != first.sizes())
      fail(ErrorCategory::data,
           "the samples of a batch have different shapes: [{}] for sample 0, [{}] for sample {}; "
           "pad or crop them in the dataset, or pass accel::PadCollate or another collate function",
           fmt::join(first.sizes(), ", "), fmt::join(other.sizes(), ", "), i);
    if (other.scalar_type() != first.scalar_type())
      fail(ErrorCategory::data,
           "the samples of a batch have different types: {} for sample 0, {} for sample {}; "
           "convert them in the dataset",
           c10::toString(first.scalar_type()), c10::toString(other.scalar_type()), i);
  }
  return at::stack(samples);
}

at::Tensor empty_batch(c10::IntArrayRef sizes, c10::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type));
}

void fail_lengths(const char* what, std::size_t first, std::size_t other, std::size_t sample) {
  fail(ErrorCategory::data,
       "the samples of a batch have different numbers of {}: {} for sample 0, {} for sample {}; "
       "make them equal in the dataset, or pass a collate function",
       what, first, other, sample);
}

}  // namespace accel::detail
