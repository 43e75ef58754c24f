// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Counters in memory that the ranks of one host share, and how a rank waits for one. The ground of
// shm_ring.hpp and shm_mailbox.hpp; nothing of LibTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>

namespace accel::detail {

/// A counter that one rank moves on and others wait for, alone in its cache lines (128 bytes, since
/// processors fetch lines in pairs). It may pass 2^32: values are compared by signed difference.
/// All zero bytes is a valid start, so that fresh memory needs no constructor.
struct alignas(128) WaitWord {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};

  [[nodiscard]] bool reached(std::uint32_t target) const noexcept {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }

  /// Moves on to `next` and wakes those that sleep. What was written before is seen by who waited.
  void publish(std::uint32_t next) noexcept;

  /// The same by one, where several ranks move the word.
  void bump() noexcept;

  /// Sleeps until the word has reached `target`, somebody publishes, or `slice` is over.
  void sleep(std::uint32_t target, std::chrono::nanoseconds slice) noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(WaitWord) == 128);

/// How long a rank stays awake before it sleeps. It must outlast the time that the system takes to
/// wake a sleeper (some 50 us on a virtual machine): with less, ranks put each other to sleep in
/// turn. While it is awake it gives its core away again and again: a long spin costs a time slice
/// where two ranks share a core. On a busy machine the first of these may last that slice; a sleeper
/// comes back sooner, hence a time and not a number of turns.
struct Patience {
  int spins = 20;
  std::chrono::microseconds awake{100};
};

void relax_core() noexcept;  ///< tells the core that this thread spins
void yield_core() noexcept;  ///< lets another thread run

/// Waits until `word` reaches `target`. While it sleeps it calls `check` ten times a second, which
/// throws where there is nothing left to wait for.
template <std::invocable Check>
void wait_until(WaitWord& word, std::uint32_t target, const Patience& patience, Check&& check) {
  using namespace std::chrono_literals;
  for (int i = 0; i < patience.spins; ++i) {
    if (word.reached(target)) return;
    relax_core();
  }
  if (patience.awake > 0us) {
    const auto end = std::chrono::steady_clock::now() + patience.awake;
    do {
      yield_core();
      if (word.reached(target)) return;
    } while (std::chrono::steady_clock::now() < end);
  }
  while (!word.reached(target)) {
    word.sleep(target, 100ms);
    if (word.reached(target)) return;
    check();
  }
}

}  // namespace accel::detail
