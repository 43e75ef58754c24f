// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the user asks of a loader, and the place that an accelerator gives it. loader.hpp does what
// they say.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/data/active_loaders.hpp>
#include <accel/data/index_plan.hpp>

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace accel {

/// What the user asks of a loader. Checked when the loader is made: Error(config) names the field
/// and its value.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;  ///< of one rank; with `split_batches`, of all ranks together
  bool shuffle = false;         ///< another order each epoch, the same on every rank
  bool drop_last = false;       ///< leave the last round out if it lacks samples
  bool even_batches = true;     ///< fill the last round with the epoch's first samples
  bool split_batches = false;   ///< cut one batch into slices; else each rank has its own
  int num_workers = 0;          ///< threads that read ahead; 0 reads when a batch is asked for
  int prefetch_factor = 2;      ///< batches that each of them may be ahead

  /// Of the order; without it, the seed that the default CPU generator was given.
  std::optional<std::uint64_t> data_seed = std::nullopt;

  /// Copy to a CUDA device from pinned memory while the host goes on. On the CPU nothing is copied.
  bool non_blocking = false;

  /// Of a stream: rank 0 reads it and deals out its batches.
  bool dispatch_batches = false;
  /// Of a stream: each rank's gives that rank's share already.
  bool already_sharded = false;
};

/// Where a loader runs. The default is one process that leaves batches where they are.
struct LoaderPlacement {
  int process_index = 0;
  int num_processes = 1;

  /// Where batches are moved to.
  std::optional<c10::Device> device = std::nullopt;

  /// Who is told which loader is being iterated.
  std::shared_ptr<ActiveLoaders> active_loaders = nullptr;

  /// The seed that ranks agreed on; a loader's `data_seed` goes before it.
  std::optional<std::uint64_t> seed = std::nullopt;

  /// Over which the ranks tell each other how a stream goes on, and why one of them stops.
  Communicator communicator{};

  /// Ranks may get different numbers of batches.
  bool allow_uneven_batches = false;
};

namespace detail {

/// Throws Error(config) for a value that cannot be.
void check_loader_options(const DataLoaderOptions& options);

/// The same, for what only a dataset that is no stream cannot have.
void check_dataset_options(const DataLoaderOptions& options);

/// The same, for copies that are asked for in a place where batches are not moved.
void check_copies(const DataLoaderOptions& options, const LoaderPlacement& placement);

/// The part of this rank in an epoch over `samples` samples.
IndexPlan make_plan(const DataLoaderOptions& options, const LoaderPlacement& placement,
                    std::int64_t samples);

/// The seed of the order: the loader's own, else the one that ranks agreed on, else the default CPU
/// generator's.
std::uint64_t choose_seed(const DataLoaderOptions& options, const LoaderPlacement& placement);

}  // namespace detail
}  // namespace accel
