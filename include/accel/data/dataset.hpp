// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a dataset is: something with a number of samples, any of which can be asked for. LibTorch's
// datasets and their .map(transform) chains are, and so is a std::vector of samples. collate.hpp
// makes a batch of what is read here.
#pragma once

#include <accel/detail/error.hpp>
#include <accel/detail/unmet.hpp>

#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {
namespace detail {

template <class T>
inline constexpr bool is_optional_result = false;
template <class T>
inline constexpr bool is_optional_result<std::optional<T>> = true;

template <class Dataset>
concept Counted = requires(const Dataset& dataset) {
  { dataset.size() } -> std::convertible_to<std::optional<std::size_t>>;
};

// A result that may be empty is how LibTorch's stateful datasets say that the stream has ended: no
// map-style dataset.
template <class Dataset>
concept ReadsBatches = requires(Dataset& dataset, c10::ArrayRef<std::size_t> indices) {
  dataset.get_batch(indices);
  requires !is_optional_result<std::remove_cvref_t<decltype(dataset.get_batch(indices))>>;
};

template <class Dataset>
concept ReadsSamples = requires(Dataset& dataset, std::size_t index) { dataset.get(index); };

template <class Dataset>
concept IsIndexed = requires(const Dataset& dataset, std::size_t index) { dataset[index]; };

}  // namespace detail

/// A dataset whose samples are numbered 0 .. size()-1 and can be read in any order:
///   size()              a number, or a std::optional of one that is never empty
///   and one of
///   get_batch(indices)  the samples `indices` (c10::ArrayRef<size_t>), as a batch or a std::vector
///   get(index)          one sample
///   dataset[index]      one sample of a const dataset, as std::vector has it
/// Reading an index twice gives the same sample, unless its author wants it otherwise (the compiler
/// cannot see that).
template <class Dataset>
concept MapDataset =
    (detail::Counted<Dataset> && (detail::ReadsBatches<Dataset> || detail::ReadsSamples<Dataset> ||
                                  detail::IsIndexed<Dataset>)) ||
    detail::unmet<
        "accel: a loader needs a dataset with size() and get(index), get_batch(indices) or "
        "operator[]; use a std::vector of samples, a torch::data dataset, or add those members",
        Dataset>;

namespace detail {

/// Samples in `dataset`.
template <MapDataset Dataset>
std::int64_t dataset_size(const Dataset& dataset) {
  const std::optional<std::size_t> size = dataset.size();
  if (!size.has_value())
    fail(ErrorCategory::data,
         "the dataset does not know its size(); a loader needs a dataset that does");
  return static_cast<std::int64_t>(*size);
}

/// Reads the samples `indices`: what get_batch() returns, or a std::vector of samples.
template <MapDataset Dataset>
auto read_samples(Dataset& dataset, c10::ArrayRef<std::size_t> indices) {
  if constexpr (ReadsBatches<Dataset>) {
    return dataset.get_batch(indices);
  } else {
    const auto read = [&](std::size_t index) {
      if constexpr (ReadsSamples<Dataset>) {
        return dataset.get(index);
      } else {
        return std::as_const(dataset)[index];
      }
    };
    std::vector<decltype(read(0))> samples;
    samples.reserve(indices.size());
    for (const std::size_t index : indices) samples.push_back(read(index));
    return samples;
  }
}

/// What read_samples() gives.
template <class Dataset>
using SamplesOf = decltype(read_samples(std::declval<Dataset&>(), c10::ArrayRef<std::size_t>()));

/// Whether reading leaves the dataset as it is, so that threads may read one object at once.
template <class Dataset>
concept ReadsConst =
    (ReadsBatches<Dataset> && ReadsBatches<const Dataset>) ||
    (!ReadsBatches<Dataset> && ReadsSamples<Dataset> && ReadsSamples<const Dataset>) ||
    (!ReadsBatches<Dataset> && !ReadsSamples<Dataset> && IsIndexed<Dataset>);

}  // namespace detail
}  // namespace accel
