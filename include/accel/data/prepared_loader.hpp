// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A loader in its place: the batches of one rank, on its device, announced to the accelerator. What
// prepare() makes of a DataLoader.
#pragma once

#include <accel/data/data_loader.hpp>
#include <accel/data/loader.hpp>
#include <accel/data/loader_options.hpp>

#include <utility>

namespace accel {

/// The batches that one rank gets of a DataLoader. Copies share dataset and position; the
/// DataLoader keeps a position of its own. Local: nothing is communicated, since every rank
/// computes the same order and takes its part.
///
///     for (auto& batch : loader) ...      // on the device; the last one closes the window
template <MapDataset Dataset, CollateFor<Dataset> Collate = DefaultCollate>
class PreparedDataLoader : public detail::Loader<Dataset, Collate> {
 public:
  /// Throws Error(config) where the options do not fit the number of processes.
  PreparedDataLoader(const DataLoader<Dataset, Collate>& loader, LoaderPlacement placement)
      : detail::Loader<Dataset, Collate>(loader.reader(), loader.sampler(), loader.options(),
                                         std::move(placement)) {}

  /// A loader as this one was made of, of the same dataset, at its beginning.
  [[nodiscard]] DataLoader<Dataset, Collate> unprepared() const {
    return {this->reader(), this->sampler(), this->options()};
  }
};

/// Accelerate's name: a range of the next epoch's batches without its first `batches`.
template <class Dataset, class Collate>
[[nodiscard]] auto skip_first_batches(const detail::Loader<Dataset, Collate>& loader,
                                      std::int64_t batches) {
  return loader.skip_first_batches(batches);
}

}  // namespace accel
