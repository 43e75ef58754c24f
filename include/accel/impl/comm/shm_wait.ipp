// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_wait.hpp>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace accel::detail {
namespace {

// Not the _PRIVATE operations: the word is in several processes' memory.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, const timespec& slice) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &slice, nullptr,
            0);
}
void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace

void WaitWord::publish(std::uint32_t next) noexcept {
  // In one order with the sleeper's count and its look at the value: either it sees the value, or it
  // is seen here.
  value.store(next, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(value);
}

void WaitWord::bump() noexcept {
  value.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(value);
}

void WaitWord::sleep(std::uint32_t target, std::chrono::nanoseconds slice) noexcept {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const auto seen = value.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - target) < 0) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(slice);
    futex_wait(
        value, seen,
        {static_cast<time_t>(seconds.count()), static_cast<long>((slice - seconds).count())});
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void relax_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void yield_core() noexcept { ::sched_yield(); }

}  // namespace accel::detail
