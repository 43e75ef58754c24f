// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Datasets as streams, with the members that stream.hpp asks for: those of numbered samples, for what
// only streams can do, and LibTorch's stateful ones. Comes after dataset.hpp.
#pragma once

#include <accel/data/dataset.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/nested.hpp>
#include <accel/detail/unmet.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace accel {

namespace detail {
template <class Dataset>
concept GivesSamples = is_sequence<SamplesOf<Dataset>> ||
                       unmet<"accel: as_stream needs a dataset that gives samples one by one, and "
                             "its get_batch() makes a "
                             "batch of its own; add get(index) in a class without get_batch()",
                             Dataset>;
}  // namespace detail

/// A dataset of numbered samples as a stream, in their order: for dispatch_batches, or where each
/// rank has a dataset of its own (already_sharded).
template <MapDataset Dataset>
  requires detail::GivesSamples<Dataset>
class DatasetStream {
 public:
  explicit DatasetStream(Dataset dataset) : dataset_(std::move(dataset)) {}

  void reset() noexcept { next_ = 0; }
  auto next() {
    const auto read = [&] { return std::move(detail::read_samples(dataset_, next_)[0]); };
    std::optional<std::remove_cvref_t<decltype(read())>> sample;
    if (next_ < size()) {
      sample.emplace(read());
      ++next_;
    }
    return sample;
  }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(detail::dataset_size(dataset_));
  }
  [[nodiscard]] nlohmann::json state() const { return next_; }
  void load_state(const nlohmann::json& state) { next_ = state.get<std::size_t>(); }

 private:
  Dataset dataset_;
  std::size_t next_ = 0;
};

template <MapDataset Dataset>
  requires detail::GivesSamples<Dataset>
[[nodiscard]] DatasetStream<Dataset> as_stream(Dataset dataset) {
  return DatasetStream<Dataset>(std::move(dataset));
}

namespace detail {
template <class Dataset>
concept Stateful = requires(Dataset& dataset, std::size_t batch_size) {
  dataset.reset();
  requires is_optional_result<std::remove_cvref_t<decltype(dataset.get_batch(batch_size))>>;
  requires is_sequence<std::remove_cvref_t<decltype(*dataset.get_batch(batch_size))>>;
};
}  // namespace detail

/// A stateful dataset of LibTorch's (a ChunkDataset, say), which gives batches until it is at its
/// end, as a stream of their samples. Copies share the dataset.
template <detail::Stateful Dataset>
class StatefulStream {
 public:
  /// `batch_size` samples are read at a time; a ChunkDataset insists on the number that it was made
  /// with.
  StatefulStream(std::shared_ptr<Dataset> dataset, std::size_t batch_size)
      : dataset_(std::move(dataset)), batch_size_(batch_size) {
    if (!dataset_ || batch_size_ == 0)
      detail::fail(ErrorCategory::usage,
                   "as_stream needs a dataset and a batch size of at least 1, and got {} and {}",
                   dataset_ ? "one" : "a null pointer", batch_size_);
  }

  void reset() {
    dataset_->reset();
    batch_.clear();
    next_ = 0;
  }
  auto next() {
    if (next_ == batch_.size()) read();
    return next_ < batch_.size() ? std::optional(std::move(batch_[next_++])) : std::nullopt;
  }

 private:
  using Batch = std::remove_cvref_t<decltype(*std::declval<Dataset&>().get_batch(std::size_t{1}))>;

  void read() {
    auto batch = dataset_->get_batch(batch_size_);
    batch_ = batch ? *std::move(batch) : Batch();
    next_ = 0;
  }

  std::shared_ptr<Dataset> dataset_;
  std::size_t batch_size_;
  Batch batch_;
  std::size_t next_ = 0;
};

template <detail::Stateful Dataset>
[[nodiscard]] StatefulStream<Dataset> as_stream(std::shared_ptr<Dataset> dataset,
                                                std::size_t batch_size) {
  return {std::move(dataset), batch_size};
}
template <detail::Stateful Dataset>
[[nodiscard]] StatefulStream<Dataset> as_stream(Dataset dataset, std::size_t batch_size) {
  return {std::make_shared<Dataset>(std::move(dataset)), batch_size};
}

}  // namespace accel
