// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Orders of an epoch that are no permutation, or one of your own: what a sampler is, and those that
// PyTorch has too. sampler.hpp has the order of a loader without one. loader.hpp asks a sampler once
// an epoch, on every rank, and shards what it says like any order. A sampler may give batches of
// samples in the place of samples: those are then what is shared out.
#pragma once

#include <accel/data/loader_options.hpp>
#include <accel/data/round_plan.hpp>
#include <accel/data/sampler.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/unmet.hpp>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {
namespace detail {

template <class Range>
concept IndexRange = std::ranges::input_range<Range> &&
                     std::convertible_to<std::ranges::range_value_t<Range>, std::int64_t>;

template <class Range>
concept BatchRange =
    std::ranges::input_range<Range> && IndexRange<std::ranges::range_reference_t<Range>>;

template <class Range>
concept OrderRange = IndexRange<Range> || BatchRange<Range>;

template <class T>
concept OrdersBySeed = requires(T& sampler, std::int64_t epoch, std::uint64_t seed) {
  { sampler.order(epoch, seed) } -> OrderRange;
};
template <class T>
concept OrdersByEpoch = requires(T& sampler, std::int64_t epoch) {
  { sampler.order(epoch) } -> OrderRange;
};

/// What a sampler gives for an epoch.
template <class T>
decltype(auto) order_of(T& sampler, std::int64_t epoch, std::uint64_t seed) {
  if constexpr (OrdersBySeed<T>)
    return sampler.order(epoch, seed + static_cast<std::uint64_t>(epoch));
  else
    return sampler.order(epoch);
}

}  // namespace detail

/// Which samples an epoch visits, and in which order:
///   size()              how many, in any epoch; a sample may come several times, or not at all
///   and one of
///   order(epoch)        their numbers, as a std::vector or another range
///   order(epoch, seed)  the same, from a seed that is another one in each epoch: data_seed, or what
///                       torch::manual_seed was given, plus the epoch
/// Every rank must get the same numbers: a rank takes its part of them.
///
/// A batch sampler gives batches instead, each a range of numbers, of any lengths (samples of like
/// length together, say): size() is then how many batches, the loader's batch_size stays 1, and rank r
/// of R gets the batches r, r + R, ... Without even_batches the last ranks may get one less; with it
/// they get the first batches again, which gather_for_metrics leaves out.
template <class T>
concept Sampler =
    (requires(const T& sampler) {
      { sampler.size() } -> std::convertible_to<std::int64_t>;
    } && (detail::OrdersBySeed<T> || detail::OrdersByEpoch<T>)) ||
    detail::unmet<
        "accel: a sampler needs size() and order(epoch) or order(epoch, seed), which gives "
        "a range of size() integers or of size() batches of them; add them",
        T>;

/// 0, 1, ..., samples - 1, or the first so many of a dataset.
class SequentialSampler {
 public:
  explicit SequentialSampler(std::int64_t samples) : samples_(samples) {}
  [[nodiscard]] std::int64_t size() const noexcept { return samples_; }
  [[nodiscard]] auto order(std::int64_t) const {
    return std::views::iota(std::int64_t{0}, samples_);
  }

 private:
  std::int64_t samples_;
};

/// Draws samples by weight: PyTorch's WeightedRandomSampler, with the draws that it makes from a
/// generator of the epoch's seed.
class WeightedRandomSampler {
 public:
  /// Weights need not add up to 1. Throws Error(config) for weights that cannot be drawn by, and,
  /// without replacement, for more samples than have a weight above 0.
  WeightedRandomSampler(const std::vector<double>& weights, std::int64_t samples,
                        bool replacement = true);
  [[nodiscard]] std::int64_t size() const noexcept { return samples_; }
  [[nodiscard]] std::vector<std::int64_t> order(std::int64_t epoch, std::uint64_t seed) const;

 private:
  at::Tensor weights_;
  std::int64_t samples_;
  bool replacement_;
};

namespace detail {

/// The order that a sampler gave for a dataset of `dataset_size` samples. Throws Error(data) where it
/// has another length than `samples`, or a number that no sample has.
EpochOrder checked_order(std::vector<std::int64_t> order, std::int64_t samples,
                         std::int64_t dataset_size);

/// The batches of an epoch, by sample number.
using EpochBatches = std::vector<std::vector<std::size_t>>;

/// The same for the batches that a sampler gave: `batches` of them, and none empty.
EpochBatches checked_batches(const std::vector<std::vector<std::int64_t>>& given,
                             std::int64_t batches, std::int64_t dataset_size);

/// Lengths and numbers as one list, to be compared over ranks.
EpochOrder as_order(const EpochBatches& batches);

/// The ranks' parts of round `round` of batches that are dealt out one to a rank, in samples. A batch
/// behind the last one is a repeat.
std::vector<RoundShare> shares_of_round(const EpochBatches& batches, std::int64_t round,
                                        int num_processes);

/// Throws Error(config) where the options have an order too, or cut batches that are cut already.
void check_sampler_options(const DataLoaderOptions& options, std::int64_t size, bool gives_batches);

/// A sampler without its type. The default is the order of the options.
class AnySampler {
 public:
  AnySampler() = default;

  template <Sampler S>
  explicit AnySampler(std::shared_ptr<S> sampler)
      : size_([sampler] { return static_cast<std::int64_t>(std::as_const(*sampler).size()); }) {
    const auto numbers_of = [](auto&& range) {
      std::vector<std::int64_t> numbers;
      for (const auto number : range) numbers.push_back(static_cast<std::int64_t>(number));
      return numbers;
    };
    if constexpr (BatchRange<decltype(order_of(*sampler, 0, 0))>)
      batches_ = [sampler, numbers_of](std::int64_t epoch, std::uint64_t seed) {
        std::vector<std::vector<std::int64_t>> batches;
        for (auto&& batch : order_of(*sampler, epoch, seed)) batches.push_back(numbers_of(batch));
        return batches;
      };
    else
      order_ = [sampler, numbers_of](std::int64_t epoch, std::uint64_t seed) {
        return numbers_of(order_of(*sampler, epoch, seed));
      };
  }

  explicit operator bool() const noexcept { return static_cast<bool>(size_); }
  [[nodiscard]] bool gives_batches() const noexcept { return static_cast<bool>(batches_); }
  /// Samples, or batches.
  [[nodiscard]] std::int64_t size() const { return size_(); }
  [[nodiscard]] std::vector<std::int64_t> order(std::int64_t epoch, std::uint64_t seed) const {
    return order_(epoch, seed);
  }
  [[nodiscard]] std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch,
                                                               std::uint64_t seed) const {
    return batches_(epoch, seed);
  }

 private:
  std::function<std::int64_t()> size_;
  std::function<std::vector<std::int64_t>(std::int64_t, std::uint64_t)> order_;
  std::function<std::vector<std::vector<std::int64_t>>(std::int64_t, std::uint64_t)> batches_;
};

}  // namespace detail
}  // namespace accel
