// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/objects.hpp>

#include <ATen/ops/full.h>

#include <accel/comm/agreement.hpp>
#include <accel/data/sampler.hpp>
#include <accel/detail/error.hpp>
#include <accel/engine/seed.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace accel {

std::uint64_t detail::agreed_seed(const Communicator& communicator) {
  // A seed is 64 bits without a sign; a tensor holds 64 with one.
  const std::uint64_t mine = default_data_seed();
  std::int64_t bits = 0;
  std::memcpy(&bits, &mine, sizeof bits);
  bits = communicator.broadcast(at::full({}, bits, at::kLong), 0).item<int64_t>();
  std::uint64_t agreed = 0;
  std::memcpy(&agreed, &bits, sizeof agreed);
  return agreed;
}

void detail::seed_per_rank(const Communicator& communicator) {
  const auto first = agreed_seed(communicator);
  if (communicator.rank() != 0 && default_data_seed() == first)
    set_seed(first, {.process_index = communicator.rank()});
}

void detail::require_object(bool there) {
  if (!there)
    fail(ErrorCategory::usage,
         "accel: prepare was given an empty pointer or module holder; make the object first");
}

void detail::require_even_batches(const Communicator& communicator,
                                  const DataLoaderOptions& options,
                                  const LoaderPlacement& placement, std::int64_t samples) {
  if (communicator.size() == 1) return;
  require_agreement(
      communicator,
      fmt::format("samples {}\nbatch_size {}\nshuffle {}\ndrop_last {}\neven_batches {}\n"
                  "split_batches {}\ndata_seed {}\n",
                  samples, options.batch_size, options.shuffle, options.drop_last,
                  options.even_batches, options.split_batches,
                  options.data_seed ? fmt::to_string(*options.data_seed) : "of rank 0"),
      "prepare different loaders",
      "Give every rank the whole dataset and the same options: prepare takes this rank's part");
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < placement.num_processes; ++rank) {
    auto of_rank = placement;
    of_rank.process_index = rank;
    counts.push_back(make_plan(options, of_rank, samples).size());
  }
  if (std::ranges::all_of(counts, [&](auto count) { return count == counts.front(); })) return;
  fail(ErrorCategory::config,
       "accel: the ranks would get different numbers of batches ({}) of {} samples, and those with "
       "more would wait for the others; use even_batches or drop_last, or allow_uneven_batches "
       "where the loop communicates nothing",
       fmt::join(counts, ", "), samples);
}

}  // namespace accel
