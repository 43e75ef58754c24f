// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A group over shared memory whose ranks are threads of this process.
#pragma once

#include "support/thread_ranks.hpp"

#include <accel/comm/shm_backend.hpp>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace accel::test {

/// What each rank's `body(group)` throws, as text; empty for one that returns.
inline std::vector<std::string> errors_of_shm_ranks(
    int size, const std::function<void(c10d::ProcessGroup&)>& body,
    std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000),
    const detail::RingOptions& ring = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        at::set_num_threads(1);
        try {
          auto options = c10::make_intrusive<ShmBackend::Options>();
          options->timeout = timeout;
          options->ring = ring;
          const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
          group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                            c10::make_intrusive<ShmBackend>(store, rank, size, options));
          group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
          body(*group);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
  }
  return errors;
}

}  // namespace accel::test
