// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Waits for many descriptors at once and says which became readable, in the order in which they
// did. Knows nothing of what they are.
#pragma once

#include <accel/launch/rank_process.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel::detail {

class EventSet {
 public:
  /// Throws Error(launch), as add does, if the system has no room.
  EventSet();

  /// `name` is what wait() calls the descriptor.
  void add(const FileDescriptor& descriptor, std::uint32_t name);

  /// Takes it out and closes it.
  void remove(FileDescriptor& descriptor);

  /// The names of those that are readable, once there are any, or none after `milliseconds` (-1: no
  /// limit). The order is that of time even where this process was not running meanwhile.
  std::vector<std::uint32_t> wait(int milliseconds);

 private:
  FileDescriptor set_;
  std::size_t size_ = 0;
};

}  // namespace accel::detail
