// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a ring as threads of this process, over memory of its own: without LibTorch, so that
// ThreadSanitizer sees all of it.
#pragma once

#include <accel/comm/shm_ring.hpp>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace accel::test {

/// What each rank's `body(ring)` throws, as text; empty for one that returns. Catch's assertions are
/// not for several threads at once: bodies compute, and the main thread compares.
template <class Body>
std::vector<std::string> errors_of_ring(int size, const detail::RingOptions& options, Body&& body) {
  const auto bytes = detail::ShmRing::bytes_needed(size, options);
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, bytes),
                                                           &std::free);
  std::memset(memory.get(), 0, bytes);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        detail::ShmRing ring(static_cast<std::byte*>(memory.get()), rank, size, options);
        try {
          body(ring);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
        ring.peers().leave();
      });
  }
  return errors;
}

/// Bytes with a margin on both sides, to see whether anything was written beyond them.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), all_(bytes + 2 * margin, mark) {}
  [[nodiscard]] std::byte* data() { return all_.data() + margin; }
  [[nodiscard]] std::vector<std::byte> values() const {
    return {all_.begin() + margin, all_.end() - margin};
  }
  [[nodiscard]] bool is_intact() const {
    for (std::size_t i = 0; i < margin; ++i)
      if (all_[i] != mark || all_[margin + bytes_ + i] != mark) return false;
    return true;
  }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr std::byte mark{0xa5};
  std::size_t bytes_;
  std::vector<std::byte> all_;
};

}  // namespace accel::test
