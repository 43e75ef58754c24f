// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups over shared memory, or another backend, whose ranks are threads of this process.
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

/// Opens a rank's backend for CPU tensors.
using OpenBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank)>;

/// What each rank's `body(group)` throws, as text; empty for one that returns.
inline std::vector<std::string> errors_of_group_ranks(
    int size, const OpenBackend& open, const std::function<void(c10d::ProcessGroup&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        at::set_num_threads(1);
        try {
          const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
          group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                            open(store, rank));
          group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
          body(*group);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
  }
  return errors;
}

/// The same over shared memory.
inline std::vector<std::string> errors_of_shm_ranks(
    int size, const std::function<void(c10d::ProcessGroup&)>& body,
    std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000),
    const detail::RingOptions& ring = {}) {
  const auto open = [&](const c10::intrusive_ptr<c10d::Store>& store, int rank) {
    auto options = c10::make_intrusive<ShmBackend::Options>();
    options->timeout = timeout;
    options->ring = ring;
    return c10::make_intrusive<ShmBackend>(store, rank, size, options);
  };
  return errors_of_group_ranks(size, open, body);
}

}  // namespace accel::test
