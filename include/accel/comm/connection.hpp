// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a communicator holds. Its body (impl/comm/connection.ipp) is a job's start-up: the store, the
// roll call, the group. For the bodies of this layer only, since it includes c10d's headers.
#pragma once

#include <accel/comm/communicator.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace accel {

struct Communicator::Connection {
  c10::intrusive_ptr<c10d::Store> store;  ///< none where the caller opened the group
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  bool debug = false;
  // What `duplicate` makes another one of.
  c10::DeviceType device = c10::DeviceType::CPU;
  CommunicatorOptions options{};
  std::atomic<std::uint64_t> duplicates{0};  ///< made so far, the same number on every rank
};

namespace detail {

/// What an exception says, without the C++ stack that LibTorch appends.
inline std::string cause_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

inline std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
inline std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace detail
}  // namespace accel
