// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/shm_peers.hpp>

#include <accel/detail/error.hpp>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace accel::detail {
namespace {

enum State : std::uint32_t { absent, present, left, saying_why, stopped };

}  // namespace

struct alignas(128) ShmPeers::Place {
  std::atomic<std::int32_t> process;
  std::atomic<std::uint32_t> state;
  std::array<char, 1016> reason;  ///< written before `stopped` is
};

std::size_t ShmPeers::bytes_needed(int size) {
  return sizeof(Place) * static_cast<std::size_t>(size);
}

ShmPeers::ShmPeers(std::byte* memory, int rank, int size)
    : memory_(memory), rank_(rank), size_(size) {
  place(rank).process.store(::getpid(), std::memory_order_relaxed);
  place(rank).state.store(present, std::memory_order_release);
}

ShmPeers::Place& ShmPeers::place(int rank) const { return reinterpret_cast<Place*>(memory_)[rank]; }

void ShmPeers::watch() {
  watched_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const auto process = place(peer).process.load(std::memory_order_relaxed);
    watched_.emplace_back(
        process == ::getpid() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  }
}

bool ShmPeers::is_dead(int peer) const {
  const auto process = place(peer).process.load(std::memory_order_relaxed);
  if (watched_.empty() || process == 0 || process == ::getpid()) return false;
  const auto& watched = watched_[static_cast<std::size_t>(peer)];
  if (!watched.is_open()) return ::kill(process, 0) != 0 && errno == ESRCH;
  // Readable once the process has ended, also while nobody has collected it.
  pollfd ended{watched.number(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

void ShmPeers::require(int peer) const {
  if (interrupted_.load(std::memory_order_relaxed))
    fail(ErrorCategory::collective, "accel: rank {} of {}: the group is being closed", rank_,
         size_);
  for (int other = 0; other < size_; ++other)
    if (other != rank_ && place(other).state.load(std::memory_order_acquire) == stopped)
      fail(ErrorCategory::collective, "accel: rank {} of {}: rank {} stopped: {}", rank_, size_,
           other, place(other).reason.data());
  if (place(peer).state.load(std::memory_order_acquire) == left)
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: rank {} has left the group; is this call, or the end of that rank, "
         "inside a branch on the rank?",
         rank_, size_, peer);
  if (is_dead(peer))
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: the process {} of rank {} has ended; what it printed last says why",
         rank_, size_, place(peer).process.load(std::memory_order_relaxed), peer);
}

void ShmPeers::stop(const std::string& why) noexcept {
  auto& mine = place(rank_);
  std::uint32_t before = present;
  if (!mine.state.compare_exchange_strong(before, saying_why)) return;
  const auto length = std::min(why.size(), mine.reason.size() - 1);
  std::memcpy(mine.reason.data(), why.data(), length);
  mine.reason[length] = 0;
  mine.state.store(stopped, std::memory_order_release);
}

void ShmPeers::require_running() const {
  if (place(rank_).state.load(std::memory_order_acquire) == stopped)
    fail(ErrorCategory::collective,
         "accel: rank {} of {}: the group is of no more use since an operation failed: {}", rank_,
         size_, place(rank_).reason.data());
}

void ShmPeers::leave() noexcept {
  std::uint32_t before = present;
  place(rank_).state.compare_exchange_strong(before, left);
}

}  // namespace accel::detail
