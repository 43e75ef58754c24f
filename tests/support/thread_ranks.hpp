// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a test body as several ranks that are threads of this process: a HashStore and a group each
// (Gloo, or NCCL with a device each). Milliseconds instead of the seconds that processes take.
// LibTorch's default generator is one for all threads, so that a body that draws random numbers
// gives them a generator of its own, or uses processes.
#pragma once

#include <accel/comm/partial_state.hpp>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace accel::test {

// c10d's flight recorder is one for the process, and adds a group's status to a map outside its
// mutex: groups that start on several threads at once corrupt it (a SIGSEGV in
// FlightRecorder::recordWithResetEnabled). A process holds one rank in production; here the
// recorder is off. It reads the variable at its first use.
inline const int flight_recorder_off = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

/// Calls `body(PartialState)` on `size` threads at once and waits for all. Rethrows the first
/// rank's exception.
template <class Body>
void run_ranks(int size, Body&& body, const CommunicatorOptions& options = {},
               c10::DeviceType type = c10::DeviceType::CPU) {
  static std::atomic<int> runs{0};
  const auto name = "test/" + std::to_string(runs++);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        at::set_num_threads(
            1);  // holds for the calling thread only, and another count changes the order of sums
        try {
          const Ranks ranks{.rank = rank, .size = size, .local_rank = rank, .local_size = size};
          const c10::Device device(
              type, static_cast<c10::DeviceIndex>(type == c10::DeviceType::CPU ? -1 : rank));
          body(PartialState(Communicator::over_store(store, ranks, type, options, name), device));
        } catch (...) {
          failures[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

/// What each rank's body returns. Catch's assertions are not for several threads at once: ranks
/// compute, and the main thread compares.
template <class Result, class Body>
std::vector<Result> results_of_ranks(int size, Body&& body) {
  std::vector<Result> results(static_cast<size_t>(size));
  run_ranks(size, [&](const PartialState& state) {
    results[static_cast<size_t>(state.process_index())] = body(state);
  });
  return results;
}

/// What each rank's body throws, as text; empty for a rank that returns.
template <class Body>
std::vector<std::string> errors_of_ranks(int size, Body&& body,
                                         const CommunicatorOptions& options = {}) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  run_ranks(
      size,
      [&](const PartialState& state) {
        try {
          body(state);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(state.process_index())] = error.what();
        }
      },
      options);
  return errors;
}

}  // namespace accel::test
