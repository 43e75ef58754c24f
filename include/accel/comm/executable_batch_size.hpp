// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A training function that is tried with smaller batches until it fits into memory, on every rank
// with the same. Comes after partial_state.hpp; the training that it calls is the user's.
#pragma once

#include <accel/comm/partial_state.hpp>

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace accel {

/// Whether an exception says that memory ran out: c10::OutOfMemoryError, std::bad_alloc, or one of
/// the messages that Accelerate's should_reduce_batch_size knows (allocators of the CPU and of
/// CUDA, cuDNN's "not supported"); or whether one that is nested in it does, as in the error of a
/// loader, which names the samples. The text of an `accel::Error` does not count: it may quote what
/// another rank said.
[[nodiscard]] bool is_out_of_memory(const std::exception& error);

/// How a search for a batch size goes on from one that did not fit. Every rank gives the same.
struct BatchSizeSearch {
  double factor = 0.5;        ///< of the size, truncated, is the next one; between 0 and 1
  std::int64_t smallest = 1;  ///< the last size that is tried
  /// Is given a line for each size that did not fit, on rank 0; unset: standard error.
  std::function<void(const std::string& line)> log{};
};

namespace detail {

/// How one attempt ended here.
enum class Attempt { done, out_of_memory, cut_off, failed };

/// How the exception that is being handled ends an attempt.
Attempt attempt_of(const std::exception_ptr& failure);

/// How many ranks ran out of memory; where any did, all try again. Throws on every rank where one of
/// them failed for another reason: `failure`, or Error(collective) where this rank has none. Every
/// rank must call this.
std::int64_t vote_to_retry(const Communicator& communicator, Attempt mine,
                           const std::exception_ptr& failure);

/// Throws on every rank for a search that cannot be, or that ranks see differently. Every rank must
/// call this.
void check_batch_size_search(const Communicator& communicator, std::int64_t starting_batch_size,
                             const BatchSizeSearch& search);

/// The size to try after one that did not fit on `ranks` of them, which is logged. Throws
/// Error(usage) behind the smallest.
std::int64_t next_batch_size(const Communicator& communicator, std::int64_t batch_size,
                             const BatchSizeSearch& search, std::int64_t ranks);

/// Gives back what the allocators keep for later.
void release_cached_memory();

}  // namespace detail

/// Calls `train(batch_size, processes)` with smaller and smaller batches, 128, 64, 32, 16, ..., until
/// it does not run out of memory on any rank, and returns what it returned. Everything that takes
/// memory is made inside `train`, from the processes that it is given: a connection of its own for
/// each attempt. So, where one rank runs out of memory, its unwinding closes that connection, the
/// ranks that wait for it are freed by an Error(collective), and all go on together with the same
/// smaller size. Other exceptions pass through. Every rank must call this. Throws Error(usage) where
/// the smallest size of `search` does not fit either.
///
///     accel::find_executable_batch_size(128, [&](int64_t batch_size, accel::PartialState processes) {
///       Accelerator accelerator(processes);
///       ...
///     });
///
/// With NCCL a rank that waits in a kernel is not freed when another closes: it waits for
/// `collective_timeout`, and NCCL's watchdog may then end the process. There it is for jobs whose
/// ranks need the same memory, and run out of it at the same place.
template <class Train>
  requires std::invocable<Train&, std::int64_t, PartialState>
auto find_executable_batch_size(const PartialState& processes, std::int64_t starting_batch_size,
                                Train&& train, const BatchSizeSearch& search = {}) {
  using Result = std::invoke_result_t<Train&, std::int64_t, PartialState>;
  const auto& communicator = processes.communicator();
  detail::check_batch_size_search(communicator, starting_batch_size, search);
  for (auto size = starting_batch_size;;) {
    detail::release_cached_memory();
    [[maybe_unused]] std::conditional_t<std::is_void_v<Result>, bool, std::optional<Result>>
        result{};
    auto end = detail::Attempt::done;
    std::exception_ptr failure;
    try {
      PartialState attempt(communicator.duplicate(), processes.device());
      if constexpr (std::is_void_v<Result>)
        train(size, std::move(attempt));
      else
        result.emplace(train(size, std::move(attempt)));
    } catch (...) {
      failure = std::current_exception();
      end = detail::attempt_of(failure);
    }
    // Here the attempt's connection is closed, so that nobody waits in it any more.
    if (const auto ranks = detail::vote_to_retry(communicator, end, failure); ranks > 0)
      size = detail::next_batch_size(communicator, size, search, ranks);
    else if constexpr (std::is_void_v<Result>)
      return;
    else
      return *std::move(result);
  }
}

/// The same with the processes that the environment describes.
template <class Train>
  requires std::invocable<Train&, std::int64_t, PartialState>
auto find_executable_batch_size(std::int64_t starting_batch_size, Train&& train,
                                const BatchSizeSearch& search = {}) {
  return find_executable_batch_size(PartialState(), starting_batch_size, std::forward<Train>(train),
                                    search);
}

}  // namespace accel
