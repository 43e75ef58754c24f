// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The loader that a user makes: a dataset, options, and how samples become a batch. It can be
// iterated as it is, as one process; an accelerator's prepare() makes a PreparedDataLoader of it.
#pragma once

#include <accel/data/collate.hpp>
#include <accel/data/dataset.hpp>
#include <accel/data/loader.hpp>
#include <accel/data/loader_options.hpp>
#include <accel/data/samplers.hpp>

#include <memory>
#include <utility>

namespace accel {

/// A dataset in batches. Copies share dataset and position. Made by data_loader().
///
/// With `num_workers`, threads read ahead; the order is the same. A dataset whose get() (or
/// get_batch()) is const is shared by them, any other is copied for each at the start of an epoch,
/// as LibTorch's loader does.
template <MapDataset Dataset, CollateFor<Dataset> Collate = DefaultCollate>
class DataLoader : public detail::Loader<Dataset, Collate> {
 public:
  DataLoader(std::shared_ptr<Dataset> dataset, const DataLoaderOptions& options = {},
             Collate collate = {}, detail::AnySampler sampler = {})
      : detail::Loader<Dataset, Collate>({check(std::move(dataset)), std::move(collate)},
                                         std::move(sampler), options, {}) {}

 private:
  template <MapDataset D, CollateFor<D> C>
  friend class PreparedDataLoader;

  DataLoader(detail::BatchReader<Dataset, Collate> reader, detail::AnySampler sampler,
             const DataLoaderOptions& options)
      : detail::Loader<Dataset, Collate>(std::move(reader), std::move(sampler), options, {}) {}

  static std::shared_ptr<Dataset> check(std::shared_ptr<Dataset> dataset) {
    if (!dataset)
      detail::fail(ErrorCategory::usage, "a loader was given a null pointer to a dataset");
    return dataset;
  }
};

/// A loader of `dataset`, which is moved or copied into it.
///
///     auto loader = accel::data_loader(std::move(samples), {.batch_size = 64, .shuffle = true});
template <MapDataset Dataset, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(Dataset dataset,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  return {std::make_shared<Dataset>(std::move(dataset)), options, std::move(collate)};
}

/// A loader of a dataset that others hold too.
template <MapDataset Dataset, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(std::shared_ptr<Dataset> dataset,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  return {std::move(dataset), options, std::move(collate)};
}

/// The same with an order of your own: an object, or a std::shared_ptr to one that you go on changing
/// between epochs.
///
///     auto loader = accel::data_loader(samples, accel::WeightedRandomSampler(weights, 1000),
///                                      {.batch_size = 64});
template <MapDataset Dataset, Sampler S, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(std::shared_ptr<Dataset> dataset,
                                                       std::shared_ptr<S> sampler,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  if (!sampler)
    detail::fail(ErrorCategory::usage, "a loader was given a null pointer to a sampler");
  return {std::move(dataset), options, std::move(collate), detail::AnySampler(std::move(sampler))};
}
template <MapDataset Dataset, class S, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(Dataset dataset, std::shared_ptr<S> sampler,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  return data_loader(std::make_shared<Dataset>(std::move(dataset)), std::move(sampler), options,
                     std::move(collate));
}
template <MapDataset Dataset, Sampler S, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(Dataset dataset, S sampler,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  return data_loader(std::make_shared<Dataset>(std::move(dataset)),
                     std::make_shared<S>(std::move(sampler)), options, std::move(collate));
}
template <MapDataset Dataset, Sampler S, CollateFor<Dataset> Collate = DefaultCollate>
[[nodiscard]] DataLoader<Dataset, Collate> data_loader(std::shared_ptr<Dataset> dataset, S sampler,
                                                       const DataLoaderOptions& options = {},
                                                       Collate collate = {}) {
  return data_loader(std::move(dataset), std::make_shared<S>(std::move(sampler)), options,
                     std::move(collate));
}

}  // namespace accel
