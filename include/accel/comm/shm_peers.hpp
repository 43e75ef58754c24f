// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Who the ranks of one host are, and whether they still live: each has a place in the shared memory
// where it says that it is there, that it has left, or why it stopped. Comes after shm_segment.hpp;
// shm_ring.hpp and shm_mailbox.hpp ask it while they wait. Nothing of LibTorch.
#pragma once

#include <accel/comm/shm_segment.hpp>
#include <accel/comm/shm_wait.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace accel::detail {

class ShmPeers {
 public:
  [[nodiscard]] static std::size_t bytes_needed(int size);

  /// `memory` is zeros at first, and the same for all ranks.
  ShmPeers(std::byte* memory, int rank, int size);

  /// Watches the other processes from now on. When every rank is here.
  void watch();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Throws Error(collective) if `peer`, for which this rank waits, has left, stopped or died, or if
  /// any other rank has said why it stopped.
  void require(int peer) const;

  /// Says why this rank stops, for the others. The first reason stays.
  void stop(const std::string& why) noexcept;

  /// Throws Error(collective) if this rank has stopped: the counts of steps differ since.
  void require_running() const;

  /// Says that this rank leaves, all being well.
  void leave() noexcept;

  /// Ends this rank's waits from another thread.
  void interrupt() noexcept { interrupted_.store(true, std::memory_order_relaxed); }

 private:
  struct Place;
  [[nodiscard]] Place& place(int rank) const;
  [[nodiscard]] bool is_dead(int peer) const;

  std::byte* memory_;
  int rank_;
  int size_;
  std::vector<Descriptor> watched_;  ///< a process descriptor for each rank of another process
  std::atomic<bool> interrupted_{false};
};

}  // namespace accel::detail
