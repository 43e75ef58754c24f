// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What loaders of streams do that does not depend on the type of the stream: bodies of
// stream_loader.hpp.
#include <accel/data/stream_loader.hpp>
#include <accel/comm/agreement.hpp>

#include <algorithm>

namespace accel::detail {

void check_stream_options(const DataLoaderOptions& options, const LoaderPlacement& placement,
                          bool can_travel) {
  check_loader_options(options);
  if (options.shuffle)
    fail(ErrorCategory::config,
         "shuffle is set, and a stream has an order of its own; shuffle where its samples are "
         "made, set_epoch() says which epoch it is");
  if (options.num_workers > 1)
    fail(ErrorCategory::config,
         "num_workers is {}, and one thread can read a stream in its order; use 0 or 1",
         options.num_workers);
  if (placement.num_processes == 1) return;
  if (options.dispatch_batches && !can_travel)
    fail(ErrorCategory::config,
         "dispatch_batches cannot send batches of this type to other ranks; make them of tensors, "
         "numbers, strings, and containers or structs of them that can be default-constructed");
  if ((options.dispatch_batches || options.already_sharded) &&
      placement.communicator.size() != placement.num_processes)
    fail(ErrorCategory::usage,
         "a stream of {} ranks with {} needs a communicator that connects them, and was given one "
         "of {}; prepare the loader with an accelerator",
         placement.num_processes, options.dispatch_batches ? "dispatch_batches" : "already_sharded",
         placement.communicator.size());
}

RoundPlan make_round_plan(const DataLoaderOptions& options, const LoaderPlacement& placement) {
  return RoundPlan({.batch_size = options.batch_size,
                    .num_processes = placement.num_processes,
                    .drop_last = options.drop_last,
                    .even_batches = options.even_batches,
                    .split_batches = options.split_batches,
                    .dispatch = options.dispatch_batches,
                    .already_sharded = options.already_sharded});
}

std::shared_ptr<LoaderCursor> make_stream_cursor(const DataLoaderOptions& options,
                                                 const LoaderPlacement& placement) {
  const bool own = options.already_sharded && placement.num_processes > 1;
  return std::make_shared<LoaderCursor>(make_plan(options, placement, 0),
                                        choose_seed(options, placement),
                                        own ? LoaderKind::own_stream : LoaderKind::stream);
}

void require_even_rounds(const DataLoaderOptions& options, const LoaderPlacement& placement,
                         std::optional<std::int64_t> samples) {
  const auto& communicator = placement.communicator;
  if (communicator.size() == 1) return;
  const bool all_read = !options.dispatch_batches && !options.already_sharded;
  require_agreement(
      communicator,
      fmt::format("a stream\nbatch_size {}\ndrop_last {}\neven_batches {}\nsplit_batches {}\n"
                  "dispatch_batches {}\nalready_sharded {}\nsamples {}\n",
                  options.batch_size, options.drop_last, options.even_batches,
                  options.split_batches, options.dispatch_batches, options.already_sharded,
                  all_read ? samples.value_or(-1) : -1),
      "prepare different loaders",
      "Give every rank the same stream and the same options: prepare takes this rank's part");
  if (placement.allow_uneven_batches || options.even_batches || options.drop_last) return;
  const auto plan = make_round_plan(options, placement);
  const bool is_even =
      samples && all_read &&
      plan.batches(*samples, placement.num_processes - 1) == plan.batches(*samples, 0);
  if (!is_even)
    fail(ErrorCategory::config,
         "accel: even_batches is false, and the ranks may get different numbers of batches of a "
         "stream: those with more would wait for the others; use even_batches or drop_last, or "
         "allow_uneven_batches where the loop communicates nothing");
}

}  // namespace accel::detail
