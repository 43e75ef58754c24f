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
#include <optional>
#include <type_traits>
#include <utility>

namespace accel {

/// Whether an exception says that memory ran out: c10::OutOfMemoryError, std::bad_alloc, or one of
/// the messages that Accelerate's should_reduce_batch_size knows (allocators of the CPU and of
/// CUDA, cuDNN's "not supported"). Not an `accel::Error`, which may quote what another rank said.
[[nodiscard]] bool is_out_of_memory(const std::exception& error);

/// Accelerate's rule for the next batch size to try: 0.9 of this one, truncated.
[[nodiscard]] constexpr std::int64_t reduced_batch_size(std::int64_t batch_size) noexcept {
  return static_cast<std::int64_t>(static_cast<double>(batch_size) * 0.9);
}

namespace detail {

/// How one attempt ended here.
enum class Attempt { done, out_of_memory, cut_off, failed };

/// How the exception that is being handled ends an attempt.
Attempt attempt_of(const std::exception_ptr& failure);

/// Whether all try again with a smaller size. Throws on every rank where one of them failed for
/// another reason than memory: `failure`, or Error(collective) where this rank has none. Every rank
/// must call this.
bool vote_to_retry(const Communicator& communicator, Attempt mine,
                   const std::exception_ptr& failure);

/// Gives back what the allocators keep for later.
void release_cached_memory();

[[noreturn]] void fail_without_batch_size(int rank, std::int64_t starting_batch_size);

}  // namespace detail

/// Calls `train(batch_size, processes)` with smaller and smaller batches, 128, 115, 103, 92, ..., until
/// it does not run out of memory on any rank, and returns what it returned. Everything that takes
/// memory is made inside `train`, from the processes that it is given: a connection of its own for
/// each attempt. So, where one rank runs out of memory, its unwinding closes that connection, the
/// ranks that wait for it are freed by an Error(collective), and all go on together with the same
/// smaller size. Other exceptions pass through. Every rank must call this. Throws Error(usage) when
/// the size reaches 0.
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
                                Train&& train) {
  using Result = std::invoke_result_t<Train&, std::int64_t, PartialState>;
  for (auto size = starting_batch_size; size > 0; size = reduced_batch_size(size)) {
    detail::release_cached_memory();
    [[maybe_unused]] std::conditional_t<std::is_void_v<Result>, bool, std::optional<Result>>
        result{};
    auto end = detail::Attempt::done;
    std::exception_ptr failure;
    try {
      PartialState attempt(processes.communicator().duplicate(), processes.device());
      if constexpr (std::is_void_v<Result>)
        train(size, std::move(attempt));
      else
        result.emplace(train(size, std::move(attempt)));
    } catch (...) {
      failure = std::current_exception();
      end = detail::attempt_of(failure);
    }
    // Here the attempt's connection is closed, so that nobody waits in it any more.
    if (detail::vote_to_retry(processes.communicator(), end, failure)) continue;
    if constexpr (std::is_void_v<Result>)
      return;
    else
      return *std::move(result);
  }
  detail::fail_without_batch_size(processes.process_index(), starting_batch_size);
}

/// The same with the processes that the environment describes.
template <class Train>
  requires std::invocable<Train&, std::int64_t, PartialState>
auto find_executable_batch_size(std::int64_t starting_batch_size, Train&& train) {
  return find_executable_batch_size(PartialState(), starting_batch_size,
                                    std::forward<Train>(train));
}

}  // namespace accel
