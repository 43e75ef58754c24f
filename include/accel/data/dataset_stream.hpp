// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A dataset of numbered samples as a stream, for what only streams can do. Comes after dataset.hpp;
// its members are those that stream.hpp asks for.
#pragma once

#include <accel/data/dataset.hpp>
#include <accel/detail/nested.hpp>
#include <accel/detail/unmet.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
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

}  // namespace accel
