// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors in shared memory: where the data of every rank lies there, shm_ring.hpp reduces it in
// place. An arena hands out a rank's part of that memory; nothing of LibTorch.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>

namespace accel::detail {

/// Hands out blocks of a piece of memory. Threads may call it at once.
class ShmArena {
 public:
  explicit ShmArena(std::span<std::byte> memory);

  /// A block of whole pages, or nullptr where no free one is large enough.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);

  /// Takes a block back, and gives its pages to the system.
  void release(std::byte* block);

  [[nodiscard]] std::size_t used() const;  ///< bytes, in whole pages

 private:
  std::span<std::byte> memory_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< length by offset; neighbours are joined
  std::unordered_map<std::size_t, std::size_t> taken_;
  std::size_t used_ = 0;
};

}  // namespace accel::detail
