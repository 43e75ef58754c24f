// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collation of sequences of different lengths, such as tokens: the batch is filled up at the end of
// each, and says what is real. A function for data_loader's argument `collate`, beside collate.hpp.
#pragma once

#include <accel/data/collate.hpp>
#include <accel/detail/nested.hpp>

#include <ATen/core/Tensor.h>
#include <boost/hana/adapt_struct.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace accel {

/// Sequences as rows of equal length.
struct PaddedBatch {
  at::Tensor values;   ///< [samples, length]
  at::Tensor mask;     ///< of the same shape: bool, true where a value is real
  at::Tensor lengths;  ///< [samples], int64: real values of each row
};

namespace detail {

/// Throws Error(data) for samples that are no 1-dim tensors of one dtype.
PaddedBatch pad_rows(const std::vector<at::Tensor>& sequences, double value, std::int64_t multiple);

}  // namespace detail

/// Pads samples that are 1-dim tensors to the longest of the batch, or up to the next multiple of
/// `pad_to_multiple_of`, which matrix units like. A sample may have other parts: of a pair or an
/// Example the first is padded, and the second collated as ever.
///
///     auto loader = accel::data_loader(tokens, {.batch_size = 8},
///                                      accel::PadCollate{.padding_value = 0, .pad_to_multiple_of = 8});
struct PadCollate {
  double padding_value = 0;
  std::int64_t pad_to_multiple_of = 1;

  [[nodiscard]] PaddedBatch operator()(const std::vector<at::Tensor>& samples) const {
    return detail::pad_rows(samples, padding_value, pad_to_multiple_of);
  }

  template <class Label>
  [[nodiscard]] auto operator()(std::vector<std::pair<at::Tensor, Label>> samples) const {
    std::vector<at::Tensor> sequences;
    std::vector<Label> labels;
    for (auto& [sequence, label] : samples) {
      sequences.push_back(sequence);
      labels.push_back(std::move(label));
    }
    return std::pair((*this)(sequences), default_collate(std::move(labels)));
  }

  template <class Label>
    requires(!std::is_void_v<Label>)
  [[nodiscard]] auto operator()(
      std::vector<torch::data::Example<at::Tensor, Label>> samples) const {
    std::vector<std::pair<at::Tensor, Label>> pairs;
    for (auto& sample : samples)
      pairs.emplace_back(std::move(sample.data), std::move(sample.target));
    auto [data, target] = (*this)(std::move(pairs));
    return torch::data::Example<PaddedBatch, decltype(target)>(std::move(data), std::move(target));
  }
};

}  // namespace accel

BOOST_HANA_ADAPT_STRUCT(accel::PaddedBatch, values, mask, lengths);
